"""The option crosscheck: healthy programs pass, faults that are put into the compiled code are traced to the operator
and line, and the script that comes with the error is a program."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fault_programs import EDITING_COMPILER
from interpreters import python

import flashover
from flashover import _crosscheck, exc

PACKAGE = Path(flashover.__file__).parent.parent
CHECKED = {"crosscheck": 2}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
        self.drop = torch.nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.first(x))
        y = self.norm(y)
        y = self.drop(y)
        return self.last(y).softmax(-1)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A graph that runs eager would check nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", exc.EagerWarning)
        warnings.simplefilter("error", RuntimeWarning)  # a graph that is not checked
        yield


def cuts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x[1:3, ::2] + x.unfold(1, 4, 2).sum(-1)[:2, :1]
    return y, x.t()[1], torch.where(x > 0)[0].float().sum(), x[2]


def small_types(x: torch.Tensor) -> torch.Tensor:
    y = (x.bfloat16() @ x.bfloat16().t()).softmax(-1)
    return y.half().exp().sum(-1) + y.float().argmax(-1)


def draws(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rand_like(x) + torch.randn(16)


def picks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = x.sort(-1)
    return values.cumsum(-1), indices[..., :2]


HEALTHY = {
    "types": small_types,
    "cuts": cuts,
    "draws": draws,
    "picks": picks,
    "net": Net(),
    "conv": torch.nn.Conv1d(8, 4, 3),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_right_passes(name: str, dynamic: bool | None) -> None:
    f = HEALTHY[name]
    x = torch.randn(8, 16)
    fast = flashover.compile(f, dynamic=dynamic, options=CHECKED)
    with torch.no_grad():
        for _ in range(3):
            torch.manual_seed(1)
            expected = f(x)
            torch.manual_seed(1)
            torch.testing.assert_close(fast(x), expected, rtol=2e-2, atol=2e-2)


def test_training_passes_with_eagers_random_numbers() -> None:
    torch.manual_seed(0)
    model = Net()
    other = copy.deepcopy(model)
    fast = flashover.compile(model, options=CHECKED)
    x = torch.randn(8, 16)
    for _ in range(3):
        for m in (other, fast):
            torch.manual_seed(7)
            m(x).square().sum().backward()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_writes_happen_once() -> None:
    def f(x: torch.Tensor, log: list[float]) -> torch.Tensor:
        x.add_(1)
        log.append(0.5)
        return x[1:] * 2

    x, log = torch.zeros(4), []
    y = flashover.compile(f, options=CHECKED)(x, log)
    assert torch.equal(x, torch.ones(4)) and torch.equal(y, torch.full((3,), 2.0)) and log == [0.5]


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """For a compiler whose kernels FLASHOVER_TEST_EDIT_KERNELS edits, whose plans FLASHOVER_TEST_EDIT_PLAN does."""
    wrapper = tmp_path / "cxx.py"
    wrapper.write_text(EDITING_COMPILER)
    monkeypatch.setenv("FLASHOVER_TEST_EDIT_KERNELS", "")
    return {**CHECKED, "cache": False, "compiler": f"{sys.executable} {wrapper}"}


# By the operator that is computed wrongly: where it is done, the edit, and the line.
FAULTS = {
    "gelu": ("KERNELS", r"0\.707106769f\t0.72f\t0", "y = F.gelu(self.first(x))"),
    "native_layer_norm": ("KERNELS", r"9\.99999975e-06f\t0.1f\t0", "y = self.norm(y)"),
    "addmm": ("PLAN", r"call aten.addmm.\t, 1, 1)\t, 1, 1.01)", "y = F.gelu(self.first(x))"),
}


def inject(monkeypatch: pytest.MonkeyPatch, into: str, edit: str) -> None:
    monkeypatch.setenv(f"FLASHOVER_TEST_EDIT_{into}", edit.replace(r"\t", "\t"))


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.strip() == text)


def run_script(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "repro.py"
    file.write_text(text)
    return python(file, env=os.environ | {"PYTHONPATH": str(PACKAGE)})


@pytest.mark.parametrize("operator", FAULTS)
def test_a_fault_is_traced_to_its_line(
    operator: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    into, edit, line = FAULTS[operator]
    inject(monkeypatch, into, edit)
    with torch.no_grad(), pytest.raises(exc.CrosscheckFailed) as caught:
        flashover.compile(Net().eval(), options=options)(torch.randn(8, 16) * 3)
    error = caught.value
    assert error.operator.startswith(f"aten.{operator}."), error
    assert error.where == f"{__file__}:{line_of(line)}" or "torch/nn" in error.where, error
    assert error.repro.count("torch.ops.") <= 2
    monkeypatch.delenv(f"FLASHOVER_TEST_EDIT_{into}")
    done = run_script(error.repro, tmp_path)  # this compiler has no fault
    assert done.returncode == 0 and done.stdout == "compiled code and eager agree\n", done.stderr


def test_a_script_shows_the_fault_by_itself(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inject(monkeypatch, "PLAN", r"call aten.addmm.\t, 1, 1)\t, 1, 1.01)")

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.addmm(x, x, w).sin() + 1

    with pytest.raises(exc.CrosscheckFailed) as caught:
        flashover.compile(f, options=options)(torch.randn(5, 9).t(), torch.randn(5, 5))
    assert "AssertionError" in run_script(caught.value.repro, tmp_path).stderr
    monkeypatch.delenv("FLASHOVER_TEST_EDIT_PLAN")
    assert run_script(caught.value.repro, tmp_path).returncode == 0


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_fault_in_the_backward(
    dynamic: bool | None, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the backward divides by a number of elements."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.leaky_relu(x, 0.731934).mean(1) * 3

    inject(monkeypatch, "KERNELS", r"0\.731934011f\t(0.731934011f * 1.1f)\t0")
    x = torch.rand(8, 16) + 0.1  # where the forward has the identity
    with pytest.raises(exc.CrosscheckFailed) as caught:
        flashover.compile(f, dynamic=dynamic, options=options)((-x).requires_grad_())
    assert "leaky_relu" in caught.value.operator, caught.value

    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * 0.731934

    def g(x: torch.Tensor) -> torch.Tensor:
        return Same.apply(x.sin()) + 1  # type: ignore[no-any-return, no-untyped-call]

    with pytest.raises(exc.CrosscheckFailed) as caught:
        flashover.compile(g, dynamic=dynamic, options=options)(x.requires_grad_())
    assert caught.value.operator.startswith("aten.mul."), caught.value
    assert ("dynamic=True" in caught.value.repro) == bool(dynamic)


def test_a_fault_of_symbols_alone(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of sizes that are numbers have no such text."""
    inject(monkeypatch, "KERNELS", r"(?s)(job->s\[.*?)0\.731934011f\t\1(0.731934011f * 1.1f)\t0")

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 0.731934).cos()

    x = torch.randn(9, 16)
    flashover.compile(f, dynamic=False, options=options)(x)
    with pytest.raises(exc.CrosscheckFailed) as caught:
        flashover.compile(f, dynamic=True, options=options)(x)
    assert caught.value.operator.startswith("aten.mul."), caught.value


def test_a_lost_write_to_an_input(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        state[1:3].add_(x.sum(0))
        return x * 2

    inject(monkeypatch, "PLAN", r"write back\t\t")
    with pytest.raises(exc.CrosscheckFailed) as caught:
        flashover.compile(f, options=options)(torch.ones(4, 3), torch.zeros(5, 3))
    assert caught.value.where == f"{__file__}:{line_of('state[1:3].add_(x.sum(0))')}", caught.value


def test_a_wrong_view(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.sin()
        z = torch.mm(y[2:6], w)
        y = y + 1
        return z, y[1:5].t()

    x, w = torch.randn(12, 16), torch.randn(16, 16)
    inject(monkeypatch, "PLAN", r"f32[4,16]+32 = view\t+32\t+48")
    with pytest.raises(exc.CrosscheckFailed) as caught:
        flashover.compile(f, options=options)(x, w)
    assert caught.value.where == f"{__file__}:{line_of('z = torch.mm(y[2:6], w)')}", caught.value
    inject(monkeypatch, "PLAN", r"  return t\t f32[16,4]{1,16}+16\t f32[16,4]{1,16}+32")
    with pytest.raises(exc.CrosscheckFailed) as caught:
        flashover.compile(f, options=options)(x, w)
    assert caught.value.where == f"{__file__}:{line_of('return z, y[1:5].t()')}", caught.value
    assert caught.value.operator in ("aten.t.default", "aten.permute.default")


def test_after_a_break(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch, "KERNELS", r"0\.731934011f\t(0.731934011f * 1.1f)\t0")

    def f(x: torch.Tensor) -> torch.Tensor:
        x = x.sin() * 2
        print(end="")
        x = x.cos() + 0.25
        print(end="")
        return F.leaky_relu(x - 3, 0.731934)

    with torch.no_grad(), pytest.raises(exc.CrosscheckFailed) as caught:
        flashover.compile(f, options=options)(torch.randn(9, 16))
    assert caught.value.where == f"{__file__}:{line_of('return F.leaky_relu(x - 3, 0.731934)')}"


def test_a_fault_of_fusion_is_found_by_halving(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there only where no value between is asked for: in kernels with one result."""
    inject(monkeypatch, "KERNELS", r"(?s)\Astatic(?!(?:.*?store_f32\(){2})(.*?)v_tanh\(\tstatic\1 1.01f * v_tanh(\t0")

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            x = x * 1.5 + 0.1
        y = torch.tanh(x)
        for _ in range(10):
            y = y + x
        return y

    with pytest.raises(exc.CrosscheckFailed) as caught:
        flashover.compile(f, options=options)(torch.randn(64))
    assert caught.value.operator == "aten.tanh.default"
    assert caught.value.where == f"{__file__}:{line_of('y = torch.tanh(x)')}"


def test_what_raises_in_compiled_code_only(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.addmm(x, x, w).sin()

    inject(monkeypatch, "PLAN", r"call aten.addmm.\t(t0, t0, t1\t(t0, t1, t0")
    with pytest.raises(exc.CrosscheckFailed, match=r"compiled code raises RuntimeError.*eager does not"):
        flashover.compile(f, options=options)(torch.randn(9, 5), torch.randn(5, 5))


def test_later_calls_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"checked": 0}

    def counted(*_: Any) -> None:
        state["checked"] += 1

    monkeypatch.setattr(_crosscheck.Comparison, "run", counted)
    fast = flashover.compile(lambda x: x.sin() + 1, options={"crosscheck": 3})
    for _ in range(250):
        fast(torch.ones(4))
    assert state["checked"] == 3 + 2
