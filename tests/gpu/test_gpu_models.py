"""Models on CUDA: whole capture, right against an fp32/fp64 reference, eager's strides and dtypes."""

from __future__ import annotations

from typing import Any

import models as bench
import pytest
import torch

import flashover

pytestmark = pytest.mark.gpu
NAMES = ["resnet18", "bert", "gpt2", "llama", "vit_base_patch16_224", "convnext_tiny", "t5"]


def cuda(x: Any) -> Any:
    return x.cuda() if isinstance(x, torch.Tensor) else x


@pytest.mark.parametrize("backend", ["eager", "flashover", "graphs"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_model(name: str, precision: str, backend: str) -> None:
    flashover.reset()
    model, args, kwargs = bench.make(name, small=True)
    model, args, kwargs = model.cuda(), [cuda(a) for a in args], {k: cuda(v) for k, v in kwargs.items()}
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
        before = flashover.compile_stats()
        graphs = backend == "graphs"
        fast = flashover.compile(
            model,
            fullgraph=True,
            backend="flashover" if graphs else backend,
            mode="reduce-overhead" if graphs else None,
        )
        results = [fast(*args, **kwargs) for _ in range(3)]
        after = flashover.compile_stats()
        eager = model(*args, **kwargs)
    assert after["frames"] == before["frames"] + 1
    if backend != "eager":
        assert after["kernels"] > before["kernels"]
    for result in results:
        got, want = bench.tensors(result), bench.tensors(eager)
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            assert (a.dtype, a.shape, a.stride(), a.device) == (b.dtype, b.shape, b.stride(), b.device)

    with torch.no_grad():
        reference = model.double()(
            *[bench.to_double(a) for a in args], **{k: bench.to_double(v) for k, v in kwargs.items()}
        )
    for result in results:
        assert bench.error(result, reference) <= 2 * bench.error(eager, reference) + bench.FLOOR[precision]
