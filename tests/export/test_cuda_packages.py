"""Packages with code for GPUs, built and checked where there is none; the code for the CPU in the same file runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import MODELS
from torch.export import Dim

import flashover
from flashover import _C, exc

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu/test_gpu_packages.py is for GPUs")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(256, 256)
        self.norm = torch.nn.LayerNorm(256)
        self.tied = self.lin.weight  # (stored once)
        self.register_buffer("steps", torch.arange(256.0), persistent=False)
        self.calls = torch.nn.Buffer(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls.add_(1)
        mask = torch.ones(x.shape[0], dtype=torch.bool, device=x.device)
        y = self.norm(torch.nn.functional.gelu(self.lin(x)) + self.steps)
        return {"y": torch.where(mask[:, None], y, 0.0) @ self.tied, "given": x}


def test_attention_is_chosen_for_the_device_of_the_target(tmp_path: Path) -> None:
    """An export on the CPU names the CPU's kernel for it."""

    class Attends(torch.nn.Module):
        def forward(self, q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            causal = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.5)
            return causal + torch.nn.functional.scaled_dot_product_attention(q, q, q, mask)

    program = flashover.export(Attends(), (torch.randn(2, 4, 16, 64), torch.zeros(16, 16)))
    assert "flash_attention_for_cpu" in str(program.graph)
    flashover.package(program, tmp_path / "p.flash", targets=["sm_90"])
    package = (tmp_path / "p.flash").read_bytes()
    assert b"scaled_dot_product" in package and b"for_cpu" not in package


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("both") / "p.flash"
    torch.manual_seed(0)
    program = flashover.export(Net(), (torch.randn(5, 256),), dynamic_shapes=[{0: Dim("n", max=64)}])
    flashover.package(program, path, targets=["native", "sm_90", "sm_80"], prepare=False)
    return path


def test_one_file_for_the_cpu_and_two_architectures(both: Path) -> None:
    info = flashover.package_info(both)
    found = {e["device"]: e["targets"] for e in info["entries"]}
    assert found["cuda:0"] == ["sm_90", "sm_80"] and found["cpu"][0].startswith("x86-64")
    on_cuda = next(e for e in info["entries"] if e["device"] == "cuda:0")
    assert on_cuda["kernels"] > 0 and "s0 <= 64" in on_cuda["guards"]
    assert all(type_.endswith("@cuda:0") for _, type_ in on_cuda["inputs"])
    assert len(info["weights"]) == 6
    assert os.path.getsize(both) < 256 * 256 * 4 + 200_000, "the weights are there more than once"


def test_the_cpu_side_of_the_same_file_runs(both: Path) -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(7, 256)
    for where in (None, "cpu"):
        loaded = flashover.load(both, device=where)
        assert loaded.entries["forward"].device == torch.device("cpu")
        with torch.no_grad():
            torch.testing.assert_close(loaded(x)["y"], model(x)["y"], rtol=1e-4, atol=1e-4)


def test_without_a_device_the_error_names_what_the_package_holds(both: Path, tmp_path: Path) -> None:
    with pytest.raises(exc.UserError, match=r"(?s)this machine, on CUDA devices:.*for sm_90: .*for sm_80: "):
        flashover.load(both, device="cuda")
    flashover.package(flashover.export(lambda x: x.sin() * 2, (torch.ones(9),)), tmp_path / "g", targets=["sm_90"])
    with pytest.raises(exc.UserError, match=r"(?s)does not run on this machine:.*for sm_90: "):
        flashover.load(tmp_path / "g")
    with pytest.raises(exc.UserError, match="on the CPU:"):
        flashover.load(tmp_path / "g", device="cpu")
    with pytest.raises(exc.UserError, match="CPU and on CUDA devices"):
        flashover.load(both, device="meta")


def test_the_runners_take_the_side_for_the_cpu(both: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(3, 256)
    np.save(tmp_path / "x.npy", x.numpy())
    with torch.no_grad():
        want = model(x)["y"]
    for name in ("flashover-run", "flashover-run-bare"):
        runner = Path(flashover.__file__).parent / "runtime" / "bin" / name
        if not runner.exists():
            pytest.skip("the runtime is not built")
        out = str(tmp_path / name)
        done = subprocess.run(
            [runner, both, tmp_path / "x.npy", "--out", out], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        np.testing.assert_allclose(np.load(out + "0.npy"), want.numpy(), rtol=1e-4, atol=1e-4)
        refused = subprocess.run(
            [runner, both, "--device", "cuda"], capture_output=True, text=True, check=False, timeout=100
        )
        assert refused.returncode == 1 and "for sm_90: " in refused.stderr, refused.stderr


@pytest.mark.parametrize("name", ["resnet18", "bert", "llama"])
def test_models_are_built_for_a_gpu(name: str, tmp_path: Path) -> None:
    model, args = MODELS[name]()
    if hasattr(model, "config"):
        model.config.use_cache = False
    flashover.package(flashover.export(model.eval(), args), tmp_path / "m.flash", targets=["sm_90"])
    (entry,) = flashover.package_info(tmp_path / "m.flash")["entries"]
    assert entry["device"] == "cuda:0" and entry["targets"] == ["sm_90"] and entry["kernels"] > 3


def test_every_architecture_that_is_named_can_be_built(tmp_path: Path) -> None:
    from flashover._targets import GPUS

    flashover.package(flashover.export(lambda x: x.sin() * 2, (torch.ones(999),)), tmp_path / "g", targets=list(GPUS))
    assert flashover.package_info(tmp_path / "g")["entries"][0]["targets"] == list(GPUS)


def test_changed_code_for_a_gpu_is_seen_by_its_checksum(both: Path) -> None:
    """(What is asked of cubins whose checksum is right: src/aot/package_test.cpp.)"""
    data = both.read_bytes()
    _C.check_package(data)
    at = data.find(b"\x7fELF", data.find(b"sm_90"))
    changed = bytearray(data)
    changed[at + 40] ^= 0x40
    with pytest.raises(exc.UserError, match="damaged package: wrong checksum"):
        _C.check_package(bytes(changed))


def test_devices_that_the_program_names_move_with_it(tmp_path: Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.cpu() + torch.arange(9, device="cpu", dtype=torch.float32).sin() * torch.tensor([2.0])

    flashover.package(flashover.export(f, (torch.ones(9),)), tmp_path / "g", targets=["sm_90", "native"])
    for entry in flashover.package_info(tmp_path / "g")["entries"]:
        assert all(type_.endswith("@cuda:0") == (entry["device"] == "cuda:0") for _, type_ in entry["inputs"])
    torch.testing.assert_close(flashover.load(tmp_path / "g")(torch.ones(9)), f(torch.ones(9)))
