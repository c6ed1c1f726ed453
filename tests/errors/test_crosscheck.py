"""The option crosscheck: healthy programs pass, faults that are put into the compiled code are traced to the operator
and line, and the script that comes with the error is a program."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

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
        yield


def small_types(x: torch.Tensor) -> torch.Tensor:
    y = (x.bfloat16() @ x.bfloat16().t()).softmax(-1)
    return y.half().exp().sum(-1) + y.float().argmax(-1)


def draws(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rand_like(x) + torch.randn(16)


def picks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = x.sort(-1)
    return values.cumsum(-1), indices[..., :2]


HEALTHY = {"types": small_types, "draws": draws, "picks": picks, "net": Net(), "conv": torch.nn.Conv1d(8, 4, 3)}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_right_passes(name: str) -> None:
    f = HEALTHY[name]
    x = torch.randn(8, 16)
    fast = flashover.compile(f, options=CHECKED)
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


Fault = Callable[[fx.GraphModule], None]


def inject(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    """What is compiled from now on is the graph with a fault in it."""

    class Faulty(_crosscheck.Checker):
        def __init__(self, compile_graph: Callable[[fx.GraphModule], Callable[..., Any]]) -> None:
            def compile_wrong(module: fx.GraphModule) -> Callable[..., Any]:
                module = copy.deepcopy(module)
                fault(module)
                module.recompile()
                return compile_graph(module)

            super().__init__(compile_wrong)

    monkeypatch.setattr(_crosscheck, "Checker", Faulty)


def other_operator(name: str, to: Any, **kwargs: Any) -> Fault:
    def fault(module: fx.GraphModule) -> None:
        for n in module.graph.nodes:
            if str(n.target).startswith(f"aten.{name}."):
                n.target = to
                n.kwargs = {**n.kwargs, **kwargs}

    return fault


aten = torch.ops.aten
FAULTS = {
    "gelu": (other_operator("gelu", aten.gelu.default, approximate="tanh"), "y = F.gelu(self.first(x))"),
    "native_layer_norm": (None, "y = self.norm(y)"),
    "_softmax": (other_operator("_softmax", aten._log_softmax.default), "return self.last(y).softmax(-1)"),
}


def smaller_epsilon(module: fx.GraphModule) -> None:
    for n in module.graph.nodes:
        if str(n.target).startswith("aten.native_layer_norm."):
            n.args = (*n.args[:4], 0.1)


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.strip() == text)


def run_script(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "repro.py"
    file.write_text(text)
    env = os.environ | {"PYTHONPATH": str(PACKAGE)}
    return subprocess.run([sys.executable, file], env=env, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("operator", FAULTS)
def test_a_fault_is_traced_to_its_line(operator: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fault, line = FAULTS[operator]
    inject(monkeypatch, fault or smaller_epsilon)
    with torch.no_grad(), pytest.raises(exc.CrosscheckFailed) as caught:
        flashover.compile(Net().eval(), options=CHECKED)(torch.randn(8, 16) * 3)
    error = caught.value
    assert error.operator.startswith(f"aten.{operator}."), error
    assert error.where == f"{__file__}:{line_of(line)}" or "torch/nn" in error.where, error
    assert error.repro.count("torch.ops.") <= 2
    done = run_script(error.repro, tmp_path)  # this compiler has no fault
    assert done.returncode == 0 and done.stdout == "compiled code and eager agree\n", done.stderr


def test_a_script_shows_the_fault_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inject(monkeypatch, other_operator("sin", aten.cos.default))

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin() + 1

    with pytest.raises(exc.CrosscheckFailed) as caught:
        flashover.compile(f, options=CHECKED)(torch.randn(9, 5).t())
    healthy = "got = flashover.compile(f, fullgraph=True)(*inputs)"
    assert healthy in caught.value.repro
    wrong = caught.value.repro.replace(healthy, "got = [torch.cos(*inputs)]")
    assert "AssertionError" in run_script(wrong, tmp_path).stderr
    assert run_script(caught.value.repro, tmp_path).returncode == 0


def test_a_fault_in_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    inject(monkeypatch, other_operator("gelu_backward", aten.gelu_backward.default, approximate="tanh"))
    y = flashover.compile(Net(), options=CHECKED)(torch.randn(8, 16) * 3)
    with pytest.raises(exc.CrosscheckFailed) as caught:
        y.square().sum().backward()
    assert caught.value.operator.startswith("aten.gelu_backward."), caught.value


def test_a_fault_of_fusion_is_found_by_halving(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there only where no value between is asked for."""

    def fault(module: fx.GraphModule) -> None:
        nodes = list(module.graph.nodes)
        if len(nodes[-1].args[0]) == 1:
            other_operator("tanh", aten.sin.default)(module)

    inject(monkeypatch, fault)

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            x = x * 1.5 + 0.1
        y = torch.tanh(x)
        for _ in range(10):
            y = y + x
        return y

    with pytest.raises(exc.CrosscheckFailed) as caught:
        flashover.compile(f, options=CHECKED)(torch.randn(64))
    assert caught.value.operator == "aten.tanh.default"
    assert caught.value.where == f"{__file__}:{line_of('y = torch.tanh(x)')}"


def test_one_of_a_thousand_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(module: fx.GraphModule) -> None:
        for n in module.graph.nodes:
            if n.name == "cos_default_57":
                n.target = aten.sin.default

    inject(monkeypatch, fault)

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for i in range(200):
            y = x * 0.1 + w
            y = torch.sin(y) if i % 2 else torch.cos(y)
            x = x + y * 0.1
        return x

    start = time.perf_counter()
    with pytest.raises(exc.CrosscheckFailed) as caught:
        flashover.compile(f, options={"crosscheck": 1})(torch.randn(64, 64), torch.randn(64))
    assert caught.value.operator == "aten.cos.default" and caught.value.repro.count("torch.ops.") == 1
    assert time.perf_counter() - start < 60


def test_later_calls_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    state: dict[str, int] = {}
    real = _crosscheck.first_difference

    def counted(*args: Any) -> Any:
        state["checked"] = state.get("checked", 0) + 1
        return real(*args)

    monkeypatch.setattr(_crosscheck, "first_difference", counted)
    fast = flashover.compile(lambda x: x.sin() + 1, options={"crosscheck": 3})
    for _ in range(250):
        fast(torch.ones(4))
    assert state["checked"] == 3 + 2
