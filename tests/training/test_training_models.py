"""The models of benchmarks/training.py at tiny sizes: gradients against fp64; SGD and AdamW follow eager."""

from __future__ import annotations

import pytest
import training as bench  # benchmarks/

import flashover


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", [*bench.OWN, "t5", "llama", "opt"])
def test_model_trains(name: str, precision: str) -> None:
    pytest.importorskip("transformers")
    before = flashover.compile_stats()["graphs"]
    error = bench.same_gradients(name, precision, small=True)
    assert flashover.compile_stats()["graphs"] > before
    assert error["flashover"] <= 2 * error["eager"] + bench.bench.FLOOR[precision], error
    optimizer = "adamw" if name in ("unet", "t5", "opt") else "sgd"
    losses = bench.losses(name, precision, True, optimizer)
    assert bench.track(losses, precision), losses
