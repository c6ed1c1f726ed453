"""Packages for GPUs: built by a process that sees none, loaded by one that does, without Triton and a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import MODELS

import flashover
from flashover import exc

pytestmark = pytest.mark.gpu
RUNNER = Path(flashover.__file__).parent / "runtime" / "bin" / "flashover-run"

BUILD = """
import sys, torch, flashover
from small_models import MODELS
from torch.export import Dim
assert not torch.cuda.is_available()
name, path, symbol, targets = sys.argv[1], sys.argv[2], sys.argv[3] == "symbol", sys.argv[4].split(",")
torch.manual_seed(0)
model, args = MODELS[name]()
model = model.eval()
if hasattr(model, "config"):
    model.config.use_cache = False
if symbol:
    args = tuple(torch.cat([a] * 3) for a in args)
batch = Dim("batch", min=2, max=64)
class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model
    def forward(self, *args):
        out = self.model(*args)  # (without transformers' containers, which who loads would have to import)
        return out if isinstance(out, torch.Tensor) else out.to_tuple()
program = flashover.export(Plain(), args, dynamic_shapes={"args": tuple({0: batch} for _ in args)} if symbol else None)
flashover.package(program, path, targets=targets)
"""

LOAD = """
import sys, torch
sys.modules["triton"] = None
import flashover
loaded = flashover.load(sys.argv[1])
assert loaded.entries["forward"].device.type == "cuda"
given, results = torch.load(sys.argv[2]), []
for args in given:
    leaves = torch.utils._pytree.tree_leaves(loaded(*[a.cuda() for a in args]))
    results.append([t.cpu() for t in leaves if isinstance(t, torch.Tensor)])
torch.save(results, sys.argv[3])
"""


def python(source: str, *arguments: str, **env: str) -> None:
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", source, *arguments],
        env={**os.environ, "PYTHONPATH": paths, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def target_here() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def model_of(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model, args = MODELS[name]()
    model = model.eval()
    if hasattr(model, "config"):
        model.config.use_cache = False
    return model, args


def equal(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    """Bit for bit where kernels are cut for as many processors as there are here."""
    assert len(got) == len(want)
    same = torch.cuda.get_device_properties(0).multi_processor_count == 132
    for a, b in zip(got, want, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        assert not same or torch.equal(a, b), f"other bits, by {(a - b).abs().max()}"


@pytest.mark.parametrize("name", ["resnet18", "bert", "llama"])
@pytest.mark.parametrize("symbol", [False, True])
def test_built_without_a_gpu_and_run_on_one(name: str, symbol: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.flash"
    targets = ",".join(dict.fromkeys(["sm_80", target_here(), "native"]))
    python(BUILD, name, str(path), "symbol" if symbol else "", targets, CUDA_VISIBLE_DEVICES="")
    model, args = model_of(name)
    given = [args] if not symbol else [tuple(torch.cat([a] * n) for a in args) for n in (3, 2, 5)]
    torch.save(given, tmp_path / "given.pt")
    python(LOAD, str(path), str(tmp_path / "given.pt"), str(tmp_path / "results.pt"), PATH="/nonexistent")
    results = torch.load(tmp_path / "results.pt")
    jit = flashover.compile(model.cuda())
    for call, got in zip(given, results, strict=True):
        on_device = [a.cuda() for a in call]
        for a in on_device if symbol else []:
            torch._dynamo.mark_dynamic(a, 0)
        with torch.no_grad():
            leaves = torch.utils._pytree.tree_leaves(jit(*on_device))
        equal(got, [t.cpu() for t in leaves if isinstance(t, torch.Tensor)])
    # The same file on the CPU.
    cpu = flashover.load(path, device="cpu")
    with torch.no_grad():
        want = torch.utils._pytree.tree_leaves(model.cpu()(*given[0]))
    got = torch.utils._pytree.tree_leaves(cpu(*given[0]))
    for a, b in zip(got, want, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    if RUNNER.exists():
        check_the_runner(path, tmp_path, given[-1], results[-1])


def check_the_runner(path: Path, folder: Path, args: tuple[torch.Tensor, ...], want: list[torch.Tensor]) -> None:
    files = []
    for i, a in enumerate(args):
        np.save(folder / f"x{i}.npy", a.numpy())
        files.append(str(folder / f"x{i}.npy"))
    done = subprocess.run(
        [str(RUNNER), str(path), *files, "--device", "cuda", "--out", str(folder / "out")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    for i, tensor in enumerate(want):
        assert np.array_equal(np.load(folder / f"out{i}.npy"), tensor.numpy())


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.lin(x).relu() + self.calls


def packaged(path: Path, targets: list[str]) -> Counter:
    torch.manual_seed(0)
    model = Counter()
    flashover.package(flashover.export(model, (torch.randn(4, 8),)), path, targets=targets)
    return model


def test_weights_are_written_and_exchanged_on_the_device(tmp_path: Path) -> None:
    model = packaged(tmp_path / "p.flash", [target_here()]).cuda()
    model.calls.zero_()
    loaded, x = flashover.load(tmp_path / "p.flash"), torch.randn(4, 8, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-4)
        assert all(t.is_cuda for t in loaded.weights().values())
        other = torch.randn(8)
        loaded.exchange({"lin.bias": other})
        model.lin.bias.copy_(other)
        torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(exc.UserError, match=r"must be f32.*and is f32.* on cpu"):
        loaded(x.cpu())


def test_calls_run_on_the_current_stream(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)).eval()
    flashover.package(flashover.export(model, (torch.randn(32, 64),)), tmp_path / "p.flash", targets=[target_here()])
    loaded, x = flashover.load(tmp_path / "p.flash"), torch.randn(32, 64, device="cuda")
    want, stream = loaded(x), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        got = [loaded(x) for _ in range(20)]
    stream.synchronize()
    assert all(torch.equal(g, want) for g in got)


def test_a_program_that_was_exported_on_the_device(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).cuda().eval()
    x = torch.randn(4, 8, device="cuda")
    flashover.package(flashover.export(model, (x,)), tmp_path / "p.flash", targets=["native", "avx2"])
    with torch.no_grad():
        want = model(x)
    torch.testing.assert_close(flashover.load(tmp_path / "p.flash")(x), want, rtol=1e-4, atol=1e-4)
    cpu = flashover.load(tmp_path / "p.flash", device="cpu")
    torch.testing.assert_close(cpu(x.cpu()), want.cpu(), rtol=1e-3, atol=1e-3)


def test_no_code_for_this_device_names_what_there_is(tmp_path: Path) -> None:
    other = "sm_80" if target_here() != "sm_80" else "sm_90"
    packaged(tmp_path / "p.flash", [other, "native"])
    with pytest.raises(exc.UserError, match=f"- for {other}: plan: built for {other}, not {target_here()}"):
        flashover.load(tmp_path / "p.flash")
    assert flashover.load(tmp_path / "p.flash", device="cpu").entries["forward"].device.type == "cpu"
