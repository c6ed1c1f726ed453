"""Training steps of loops, and of models that use a weight twice, take at most as much memory as eager's (the process's
large blocks are counted, peak.cpp)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import training  # benchmarks/
from cpu_features import HAS
from torch import nn

import flashover
from flashover import _C

ROOT = Path(__file__).resolve().parents[2]
CHILD = """
import copy, gc, json, sys
import torch, training, flashover
sys.path.insert(0, sys.argv[1])
import test_training_memory
torch.set_num_threads(2)
peak = training.Peak()
found = {}
for name, precision in json.loads(sys.argv[2]):
    for key in ("eager", "flashover"):
        torch.manual_seed(0)
        model, x = test_training_memory.PROGRAMS[name]()
        way = training.Way(model, model if key == "eager" else flashover.compile(model), "sgd", precision)
        for _ in range(2):
            way.step((x,), {})
        way.optimizer.zero_grad()
        gc.collect()
        before = peak.held() - (flashover._C.kept_arena_bytes() if key == "flashover" else 0)
        most = peak.of(lambda: way.step((x,), {})) - before
        found.setdefault(name + " " + precision, []).append(most)
        del model, way
        flashover.reset()
print(json.dumps(found))
"""


def tensor(*sizes: int):
    return torch.randn(*sizes)


class Cells(nn.Module):
    def __init__(self, kind: type[nn.Module], width: int, steps: int) -> None:
        super().__init__()
        self.cell, self.head, self.steps = kind(width, width), nn.Linear(width, width), steps

    def forward(self, x):
        state = None
        for _ in range(self.steps):
            state = self.cell(x, state)
            x = self.head(state[0] if isinstance(state, tuple) else state).tanh()
        return x


class Tables(nn.Module):
    """One table for what comes in and what goes out."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(2000, 64), nn.Linear(64, 64)

    def forward(self, x):
        state = 0
        for k in range(4):
            state = self.layer(self.table((x[:, k].abs() * 100).long()) + state).tanh()
        return state @ self.table.weight.t()


class Words(nn.Module):
    """A language model whose table is its last layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(2000, 64), nn.Linear(64, 64)

    def forward(self, x):
        return self.layer(self.table((x.abs() * 100).long())).tanh() @ self.table.weight.t()


class Tied(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        for _ in range(6):
            x = self.layer(x).tanh()
        return x


PROGRAMS = {
    "cells": lambda: (Cells(nn.LSTMCell, 128, 10), tensor(32, 128)),
    "tables": lambda: (Tables(), tensor(64, 4)),
    "words": lambda: (Words(), tensor(16)),
    "tied": lambda: (Tied(256), tensor(256, 256)),
}


def test_loops_take_no_more_memory_than_eager(tmp_path: Path) -> None:
    environment = training.preloaded(dict(os.environ), str(tmp_path))
    if "LD_PRELOAD" not in environment:
        pytest.skip("no compiler for peak.cpp")
    here = Path(__file__).resolve().parent
    folders = (Path(flashover.__file__).parents[1], ROOT / "benchmarks", ROOT / "tests" / "support")
    environment["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    # Bytes, as a part of eager's. (Where rows are added to the product, one table is there instead of three.)
    words = 0.7 if HAS[torch.float32] else 1.05
    # (Without 16-bit arithmetic what training keeps may be f32, docs/user/numerics.md.)
    bf16 = 1.4 if _C.missing_feature("avx512_bf16") else 1.05
    wanted = {("cells", "fp32"): 1.05, ("cells", "bf16"): bf16, ("tables", "bf16"): bf16, ("words", "fp32"): words,
              ("words", "bf16"): words, ("tied", "fp32"): 1.05}  # fmt: skip
    command = [sys.executable, "-c", CHILD, str(here), json.dumps(list(wanted))]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170)
    assert out.returncode == 0, out.stderr
    found = json.loads(out.stdout.splitlines()[-1])
    assert len(found) == len(wanted)
    most = {" ".join(key): part for key, part in wanted.items()}
    worse = {name: sizes for name, sizes in found.items() if sizes[1] > most[name] * sizes[0]}
    assert not worse, f"bytes of eager, and ours: {worse}"
