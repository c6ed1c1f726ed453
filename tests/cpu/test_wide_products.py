"""Products, convolutions and attention of 16-bit floats on a CPU without instructions for them: computed in f32, and at
least as near to fp64 as eager's. The programs run as this machine is, and where that has more than AVX2 once more in a
child that has not."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from cpu_features import LEVEL
from torch import nn

import flashover

BF16, F16 = torch.bfloat16, torch.float16


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal, self.qkv, self.out = causal, nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mask = None if self.causal else torch.linspace(-1, 1, x.shape[1], dtype=q.dtype).expand(x.shape[1], -1)
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Products(nn.Module):
    """Of batches, of one matrix for all of a batch, with factors, and with a matrix that lies as it is multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(24, 16) / 4), nn.Parameter(torch.randn(24, 24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.bmm(x, x.mT) / 8
        y = torch.baddbmm(self.b.expand(len(x), -1, -1), y, y, beta=0.5, alpha=0.25)
        y = torch.matmul(y, self.w)
        return torch.addmm(self.b[:16, :16], y[0].mT, self.w, beta=0.5, alpha=0.5)


def convolution(dims: int, **kwargs: object) -> nn.Module:
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    return nn.Sequential(kind(8, 16, 3, padding=1, **kwargs), nn.GELU(), kind(16, 8, 1, stride=2))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 24)), (48, 40)),
    "few rows": (lambda: nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 24)), (2, 40)),
    "products": (Products, (3, 24, 16)),
    "one dimension": (lambda: convolution(1), (2, 8, 30)),
    "two dimensions": (lambda: convolution(2), (2, 8, 12, 12)),
    "three dimensions": (lambda: convolution(3), (2, 8, 4, 6, 6)),
    "groups": (lambda: convolution(2, groups=8), (2, 8, 12, 12)),
    "transposed": (lambda: nn.ConvTranspose2d(8, 16, 3, stride=2), (2, 8, 6, 6)),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU()), (4, 8, 9, 9)),
    "attention": (lambda: Attention(False), (2, 20, 32)),
    "causal attention": (lambda: Attention(True), (2, 20, 32)),
}
Results = list[torch.Tensor]


def results(model: nn.Module, call: Callable[..., torch.Tensor], x: torch.Tensor, train: bool) -> Results:
    """What `call` gives, with the gradients of the input and of `model`'s parameters if it trains."""
    if not train:
        with torch.no_grad():
            return [call(x)]
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    model.zero_grad()
    y = call(x)
    (y * torch.linspace(0.5, 1.5, y.numel(), dtype=torch.float64).reshape(y.shape).to(y.dtype)).sum().backward()
    return [t for t in (y.detach(), x.grad, *(p.grad for p in model.parameters())) if t is not None]


def as_near(compiled: Results, eager: Results, exact: Results) -> None:
    """Types and layouts are eager's; the mean error is at most eager's, beside a tenth of a rounding."""
    assert len(compiled) == len(eager) == len(exact)
    for i, (got, want, right) in enumerate(zip(compiled, eager, exact, strict=True)):
        assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride()), i
        own, theirs = ((t.double() - right).square().mean().sqrt().item() for t in (got, want))
        rounding = 0.1 * torch.finfo(BF16).eps * right.square().mean().sqrt().item()
        assert own <= 1.05 * theirs + rounding, f"result {i}: off by {own}, eager by {theirs}"


@pytest.fixture
def model_and_input(request: pytest.FixtureRequest) -> tuple[nn.Module, torch.Tensor]:
    make, sizes = MODELS[request.param]
    return make(), torch.randn(sizes)


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=["bf16", "f16"])
@pytest.mark.parametrize("model_and_input", MODELS, indirect=True)
def test_program(model_and_input: tuple[nn.Module, torch.Tensor], dtype: torch.dtype, train: bool) -> None:
    model, x = model_and_input
    model, x = model.train(train).to(dtype), x.to(dtype)
    exact = copy.deepcopy(model).double()
    eager = results(own := copy.deepcopy(model), own, x, train)
    got = results(model, flashover.compile(model, fullgraph=True, options={"verify": True}), x, train)
    as_near(got, eager, results(exact, exact, x.double(), train))


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("model_and_input", MODELS, indirect=True)
def test_autocast(model_and_input: tuple[nn.Module, torch.Tensor], train: bool) -> None:
    model, x = model_and_input
    exact = copy.deepcopy(model.train(train)).double()
    with torch.autocast("cpu", BF16):
        eager = results(own := copy.deepcopy(model), own, x, train)
        got = results(model, flashover.compile(model, fullgraph=True, options={"verify": True}), x, train)
    as_near(got, eager, results(exact, exact, x.double(), train))


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_channels_last(train: bool) -> None:
    model = convolution(2).train(train).to(BF16, memory_format=torch.channels_last)
    x = torch.randn(2, 8, 12, 12).to(BF16, memory_format=torch.channels_last)
    exact = copy.deepcopy(model).double()
    eager = results(own := copy.deepcopy(model), own, x, train)
    got = results(model, flashover.compile(model, fullgraph=True, options={"verify": True}), x, train)
    as_near(got, eager, results(exact, exact, x.double(), train))


def test_sizes_that_change() -> None:
    model = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 24)).to(BF16)

    @flashover.compile(fullgraph=True, dynamic=True, options={"verify": True})
    def fast(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    exact = copy.deepcopy(model).double()
    for rows in (48, 3, 200):
        x = torch.randn(rows, 40).to(BF16)
        as_near(
            results(model, fast, x, False), results(model, model, x, False), results(exact, exact, x.double(), False)
        )
    assert len(fast.versions) == 1


@pytest.fixture
def plans(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    flashover.set_logs("plan")
    yield lambda: capfd.readouterr().err
    flashover.set_logs()


def product_types(plan: str) -> set[str]:
    """The dtypes of what operators wrote."""
    types = dict(re.findall(r"\b(t\d+) : (\w+)\[", plan))
    calls = re.findall(r"\bcall .* -> (t\d+)", plan)
    return {types[written] for written in calls}


ONLY_AVX2 = pytest.mark.skipif(LEVEL != "avx2", reason="of a machine with AVX2: test_a_machine_with_avx2 runs it")


@ONLY_AVX2
@pytest.mark.parametrize("model_and_input", [m for m in MODELS if m != "few rows"], indirect=True)
def test_operators_take_f32(model_and_input: tuple[nn.Module, torch.Tensor], plans: Callable[[], str]) -> None:
    """And weights are converted once."""
    model, x = model_and_input
    fast = flashover.compile(model.eval().to(BF16), options={"cache": False})
    with torch.no_grad():
        fast(x.to(BF16))
    plan = plans()
    assert product_types(plan) == {"f32"}
    weights = [line for line in plan.splitlines() if " input " in line and "bf16[" in line and " param" in line]
    assert weights and all(line.endswith(" param frozen") for line in weights), "read at each call"


@ONLY_AVX2
def test_few_rows_read_16_bits(plans: Callable[[], str]) -> None:
    model = nn.Linear(40, 64).to(BF16)
    with torch.no_grad():
        flashover.compile(model, options={"cache": False})(torch.randn(2, 40).to(BF16))
    assert "f32[" not in plans()


@ONLY_AVX2
def test_strict_numerics_keep_eagers_bits(plans: Callable[[], str]) -> None:
    model, x = nn.Linear(40, 64).to(BF16), torch.randn(48, 40).to(BF16)
    with torch.no_grad():
        got = flashover.compile(model, options={"cache": False, "strict_numerics": True})(x)
        assert torch.equal(got, model(x)) and "f32[" not in plans()


@pytest.mark.skipif(LEVEL != "avx512" or "FLASHOVER_ISA" in os.environ, reason="the above runs as on one")
def test_a_machine_with_avx2() -> None:
    """All of the above."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env=os.environ | {"FLASHOVER_ISA": "avx2"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
