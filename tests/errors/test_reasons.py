"""The table of reasons: a program for each row, which gets that row's words; its page is what its script makes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode

import flashover
from flashover import _reasons, exc

ROOT = Path(__file__).resolve().parents[2]
X = torch.ones(3)


@torch.library.custom_op("flashover_reasons::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


async def coroutine(x: torch.Tensor) -> torch.Tensor:
    return x


def custom_operator(x):
    return unknown(x)  # here


@triton.jit
def kernel(x_ptr):
    pass


def launches_a_kernel(x):
    kernel["no grid"](x)  # here


def data_dependent(x):
    if x.sum() > 0:  # here
        return x
    return -x


def requested(x):
    flashover.graph_break()  # here
    return x + 1


def side_effect(x):
    print("seen")  # here
    return x + 1


def uses_numpy(x):
    return torch.from_numpy(np.interp(x.numpy(), [0.0, 2.0], [0.0, 4.0]))  # here


def backward(x):
    y = (x * 2).sum()
    y.backward()  # here
    return y


def earlier_object(x, numbers):
    return x + next(numbers)  # here


def generator(x):
    coroutine(x).close()  # here
    return x + 1


def plain(x):
    return x + 1


def call_in_c(x):
    return x + time.time()  # here


def other(x):
    x.data = x.sum()  # here
    return x + 1


BREAKS: dict[str, Callable[[], Any] | None] = {
    "slower": None,  # tests/controls/test_retreat.py
    "custom-operator": lambda: (custom_operator, X),
    "kernel": lambda: (launches_a_kernel, X),
    "data-dependent": lambda: (data_dependent, X),
    "requested": lambda: (requested, X),
    "side-effect": lambda: (side_effect, X),
    "numpy": lambda: (uses_numpy, X),
    "backward": lambda: (backward, X.clone().requires_grad_()),
    "earlier-object": lambda: (earlier_object, X, iter([1, 2])),
    "generator": lambda: (generator, X),
    "mode": lambda: (plain, X),
    "kind-of-tensor": lambda: (plain, X.to_sparse()),
    "call-in-c": lambda: (call_in_c, X),
    "other": lambda: (other, X.clone()),
}


def test_each_row_has_a_program() -> None:
    assert list(BREAKS) == [r.name for r in _reasons.BREAKS]
    assert list(RECOMPILES) == [r.name for r in _reasons.RECOMPILES]


@pytest.mark.parametrize("name", [n for n, call in BREAKS.items() if call])
def test_a_program_that_cannot_be_captured(name: str) -> None:
    row = next(r for r in _reasons.BREAKS if r.name == name)
    program = BREAKS[name]
    assert program is not None
    f, *args = program()
    mode = Mode() if name == "mode" else torch.enable_grad()
    with mode, pytest.raises(exc.Unsupported) as caught:
        flashover.compile(f, fullgraph=True)(*args)
    error = caught.value
    assert (error.title, error.explanation, error.hints) == (row.title, row.why, list(row.hints)), error.reason
    assert error.docs == f"docs/user/reasons.md#{name}"
    text = str(error)
    assert all(part in text for part in (row.title, row.why, *row.hints, error.docs, error.where))
    if f is not plain:  # the line, and the frames that led to it with their source
        source = Path(__file__).read_text().splitlines()
        first = f.__code__.co_firstlineno
        line = next(i for i in range(first, first + 9) if source[i - 1].endswith("# here"))
        assert error.where == f"{__file__}:{line}" and source[line - 1].strip() in text
        assert error.stack[-1].startswith(error.where) and "called from" in text
        assert "flashover.compile(f, fullgraph=True)(*args)" in text


class Holder:
    def __init__(self) -> None:
        self.scale, self.names, self.helper = 2.0, {"a": 1}, torch.sin

    def run(self, x, k=None):
        y = self.helper(x) * self.scale
        return y if k is None else y + len(self.names)


def changed(name: str, value: object) -> Callable[[Holder, Any], Any]:
    def call(holder: Holder, fast: Any) -> Any:
        setattr(holder, name, value)
        return fast(torch.ones(2, 4))

    return call


RECOMPILES: dict[str, Callable[[Holder, Any], Any] | None] = {
    "another-rank": lambda h, f: f(torch.ones(4)),
    "another-dtype": lambda h, f: f(torch.ones(2, 4, dtype=torch.float64)),
    "another-device": None,  # needs a second one
    "another-class": lambda h, f: f(torch.nn.Parameter(torch.ones(2, 4), requires_grad=False)),
    "requires-grad": lambda h, f: f(torch.ones(2, 4, requires_grad=True)),
    "another-size": lambda h, f: f(torch.ones(3, 4)),
    "another-layout": lambda h, f: f(torch.ones(4, 2).t()),
    "torch-state": lambda h, f: torch.no_grad()(f)(torch.ones(2, 4)),
    "another-object": changed("helper", torch.cos),
    "another-structure": lambda h, f: f(torch.ones(2, 4), 1) is None or h.names.clear() or f(torch.ones(2, 4), 1),
    "another-type": lambda h, f: setattr(h, "names", OrderedDict(a=1)) or f(torch.ones(2, 4), 1),
    "another-value": changed("scale", 3.0),
    "another-case": None,  # what no other row takes; there may be none
}


@pytest.fixture
def stance() -> Iterator[None]:
    yield
    flashover.set_stance("default")


@pytest.mark.parametrize("name", [n for n, call in RECOMPILES.items() if call])
def test_a_call_that_does_not_fit(name: str, stance: None) -> None:
    call = RECOMPILES[name]
    assert call is not None
    holder = Holder()
    fast = flashover.compile(holder.run, backend="eager")
    fast(torch.ones(2, 4))
    if name in ("another-structure", "another-type"):
        fast(torch.ones(2, 4), 1)
    flashover.set_stance("fail_on_recompile")
    with pytest.raises(exc.WouldRecompile) as caught:
        call(holder, fast)
    row = next(r for r in _reasons.RECOMPILES if r.name == name)
    error = caught.value
    assert (error.title, error.hints, error.docs) == (row.title, list(row.hints), f"docs/user/reasons.md#{name}"), error
    assert error.where.startswith(__file__) and row.hints[0] in str(error)


def test_the_limit_says_which_guard_failed() -> None:
    fast = flashover.compile(lambda x: x + 1, backend="eager", fullgraph=True, options={"recompile_limit": 1})
    fast(torch.ones(2))
    with pytest.raises(exc.RecompileLimitExceeded) as caught:
        fast(torch.ones(2, dtype=torch.float64))
    assert caught.value.title == "a tensor of another dtype" and "x.to(dtype)" in str(caught.value)


def test_the_warning_of_eager_calls_knows_its_reason() -> None:
    with Mode(), pytest.warns(exc.EagerWarning) as caught:
        flashover.compile(plain)(X)
    warning = caught[0].message
    assert isinstance(warning, exc.EagerWarning)
    assert warning.reason == "a torch dispatch mode is active" and warning.where.startswith(__file__)
    assert warning.docs == "docs/user/reasons.md#mode" and warning.docs in str(warning)
    assert warning.title and warning.hints and warning.hints[0] in str(warning)


def test_the_log_of_breaks_says_what_helps(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    logger = logging.getLogger("flashover.breaks")
    logger.setLevel(logging.INFO)
    try:
        flashover.compile(lambda x: data_dependent(x * 2), backend="eager")(X)
    finally:
        logger.setLevel(logging.WARNING)
    (record,) = [r for r in caplog.records if "graph break" in r.getMessage()]
    text = record.getMessage()
    assert record.flashover_reason == "data-dependent"
    assert "torch.where" in text and "called from" in text and "docs/user/reasons.md#data-dependent" in text


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ({"mode": "max-autotun"}, "max-autotune"),
        ({"options": {"memory_budge": 3}}, "memory_budget"),
        ({"backend": "flashove"}, "flashover"),
        ({"options": {"disable_passes": "css"}}, "cse"),
    ],
)
def test_did_you_mean(wrong: dict[str, Any], meant: str) -> None:
    with pytest.raises(exc.UserError, match=f"did you mean '{meant}'"):
        flashover.compile(plain, **wrong)


def test_the_page_is_what_its_script_writes() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "reasons_page.py", "--check"], check=False)
    assert done.returncode == 0, "python tools/reasons_page.py writes it anew"
