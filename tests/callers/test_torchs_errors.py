"""Programs that catch torch.compile's errors, read its counters or register its callbacks get what they expect."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo import callback
from torch._dynamo.utils import counters

import flashover


def fails(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
    raise ValueError("no such kernel")


def broken(x: torch.Tensor) -> torch.Tensor:
    flashover.graph_break()
    return x


def of_wrong_sizes(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(3) @ torch.ones(4) + x


def test_unsupported() -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported) as e:
        flashover.compile(broken, fullgraph=True)(torch.ones(2))
    assert isinstance(e.value, flashover.exc.Unsupported) and type(e.value).__name__ == "Unsupported"
    assert e.value.msg == str(e.value)
    assert str(pickle.loads(pickle.dumps(e.value))) == str(e.value)


def test_an_operator_that_raises() -> None:
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match="inconsistent tensor size"):
        flashover.compile(of_wrong_sizes, fullgraph=True)(torch.ones(2))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        flashover.compile(of_wrong_sizes)(torch.ones(2))


def test_backends() -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no such kernel") as e:
        flashover.compile(torch.sin, backend=fails)(torch.ones(2))
    assert isinstance(e.value.inner_exception, ValueError) and e.value.backend_name == "fails"
    with pytest.raises(torch._dynamo.exc.InvalidBackend):
        flashover.compile(torch.sin, backend="fals")
    with torch._dynamo.config.patch(suppress_errors=True), pytest.warns(RuntimeWarning, match="no such kernel"):
        assert torch.equal(flashover.compile(torch.sin, backend=fails)(torch.zeros(2)), torch.zeros(2))


def test_recompiling() -> None:
    compiled = flashover.compile(torch.cos, dynamic=False)
    compiled(torch.ones(2))
    with torch._dynamo.config.patch(error_on_recompile=True), pytest.raises(torch._dynamo.exc.RecompileError):
        compiled(torch.ones(3))
    limited = torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True)
    with limited, pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        compiled(torch.ones(3))


def test_counters() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x = (x + 1) * 2
        flashover.graph_break()
        return x.sin()

    counters.clear()
    flashover.compile(f)(torch.ones(2))
    assert counters["stats"] == {"unique_graphs": 2, "calls_captured": 3}
    assert counters["frames"] == {"total": 2, "ok": 2}
    assert list(counters["graph_break"]) == ["graph_break()"]


def test_callbacks() -> None:
    seen: list[str] = []
    start = torch._dynamo.on_compile_start(lambda args: seen.append("start"))
    end = torch._dynamo.on_compile_end(lambda args: seen.append("end"))
    try:
        compiled = flashover.compile(lambda x: x + 1)
        compiled(torch.ones(2))
        compiled(torch.ones(2))
    finally:
        callback.callback_handler.remove_start_callback(start)
        callback.callback_handler.remove_end_callback(end)
    assert seen == ["start", "end"]


def test_a_callback_that_raises() -> None:
    def no(args: Any) -> None:
        raise ZeroDivisionError("in the callback")

    torch._dynamo.on_compile_start(no)
    try:
        with pytest.raises(ZeroDivisionError, match="in the callback"):
            flashover.compile(lambda x: x + 1)(torch.ones(2))
    finally:
        callback.callback_handler.remove_start_callback(no)
    assert torch.equal(flashover.compile(lambda x: x + 1)(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize(
    "ask",
    [
        lambda f, x: torch._dynamo.explain(f)(x).graph_count,
        lambda f, x: int(torch.compiler.disable(f)(x).sum()) - 3,
    ],
    ids=["explain", "disable"],
)
def test_torchs_functions_find_what_was_compiled(ask: Callable[..., int]) -> None:
    assert ask(flashover.compile(lambda x: x + 1), torch.ones(2)) == 1


def test_arguments_of_a_backend() -> None:
    got: list[dict[str, Any]] = []

    def backend(module: torch.fx.GraphModule, examples: list[torch.Tensor], **arguments: Any) -> Any:
        got.append(arguments)
        return module.forward

    for arguments in (
        {},
        {"mode": "default"},
        {"mode": "max-autotune"},
        {"options": {"level": 3, "recompile_limit": 2}},
    ):
        flashover.compile(lambda x: x + 1, backend=backend, **arguments)(torch.ones(2))
    assert got == [{}, {}, {"mode": "max-autotune"}, {"options": {"level": 3}}]
