"""Nothing runs eager in silence: each way that a compiled call ends in its original is counted and said once."""

import sys
import warnings
from collections.abc import Callable

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import flashover
from flashover import exc

X = torch.arange(4.0)


def stats() -> tuple[int, int]:
    s = flashover.compile_stats()
    return s["eager_calls"], s["eager_frames"]


def outcome(call: Callable[[], object], times: int = 2) -> tuple[int, int, list[str]]:
    """Eager calls and frames that `call` makes, and what it warns of."""
    before = stats()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(times):
            call()
    after = stats()
    texts = [str(w.message) for w in said if issubclass(w.category, exc.EagerWarning)]
    return after[0] - before[0], after[1] - before[1], texts


class Plain(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Names(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def traced(call: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        before = sys.gettrace()
        sys.settrace(lambda *a: None)
        try:
            return call()
        finally:
            sys.settrace(before)

    return run


def within(context: Callable[[], object], call: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        with context():
            return call()

    return run


def simple(**options):
    return flashover.compile(lambda x: x * 2 + 1, backend="eager", **options)


def program_settrace():
    f = simple()
    return traced(lambda: f(X)), "sys.settrace"


def program_function_mode():
    f = simple()
    return within(Names, lambda: f(X)), "torch function mode"


def program_dispatch_mode():
    f = simple()
    return within(Plain, lambda: f(X)), "torch dispatch mode"


def program_vmap():
    f = simple()
    return lambda: torch.vmap(f)(X), "functorch"


def program_jvp():
    f = simple()

    def call():
        with torch.autograd.forward_ad.dual_level():
            return f(X)

    return call, "forward-mode"


def program_jit_trace():
    f = simple()
    return lambda: torch.jit.trace(lambda x: f(x), (X,), check_trace=False), "torch.jit.trace"


def program_functions_disabled():
    f = simple()
    return within(torch._C.DisableTorchFunction, lambda: f(X)), "torch functions are disabled"


def program_while_compiling():
    inner = simple()

    def backend(module, examples):
        inner(X)
        return module.forward

    def call():
        flashover.compile(lambda x: x + 1, backend=backend)(X)

    return call, "while something is compiled"


def program_no_python_call():
    class Callable_:
        def __call__(self, x):
            return x + 1

    made = Callable_()
    f = flashover.compile(made, backend="eager")
    Callable_.__call__ = torch.sin
    return lambda: _call_or_none(f), "no __call__ in Python"


def _call_or_none(f):
    try:
        return f(X)
    except TypeError:
        return None


def program_declined():
    async def wanted(x):
        return x + 1

    f = flashover.compile(wanted, backend="eager")
    return lambda: f(X).close(), "coroutine"


def program_limit():
    f = flashover.compile(lambda x: x + 1, backend="eager", options={"recompile_limit": 1})
    f(torch.ones(2))
    return lambda: f(torch.ones(2, dtype=torch.int64)), "recompile_limit"


CALLS = [
    program_settrace,
    program_function_mode,
    program_dispatch_mode,
    program_vmap,
    program_jvp,
    program_jit_trace,
    program_functions_disabled,
    program_no_python_call,
    program_declined,
    program_limit,
]


@pytest.mark.parametrize("program", CALLS, ids=lambda p: p.__name__.removeprefix("program_"))
def test_an_eager_call_is_counted_and_said_once(program):
    call, reason = program()
    calls, _, texts = outcome(call)
    assert calls == 2
    assert len(texts) == 1, texts
    assert reason in texts[0]
    assert ".py:" in texts[0] or program is program_declined, "the line of the program"


def test_a_call_while_something_is_compiled():
    call, reason = program_while_compiling()
    calls, _, texts = outcome(call, times=1)
    assert calls == 1
    assert len(texts) == 1
    assert reason in texts[0]


def test_a_part_that_runs_eager():
    class Sparse(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", torch.eye(X.shape[0]).to_sparse())

        def forward(self, x):
            return self.rows @ x

    c = flashover.compile(torch.nn.Sequential(Sparse()), backend="eager")
    calls, frames, texts = outcome(lambda: c(X), times=1)
    assert calls + frames >= 1
    assert len(texts) == 1, texts
    assert "not a strided tensor" in texts[0]


def test_what_the_user_asked_for_is_counted_only():
    f = simple()
    assert outcome(within(lambda: flashover.set_stance("force_eager"), lambda: f(X))) == (2, 0, [])
    assert outcome(within(lambda: flashover.set_stance("eager_on_recompile"), lambda: f(X))) == (2, 0, [])
    off = flashover.disable(lambda x: x + 1)
    assert outcome(lambda: off(X)) == (2, 0, [])
    assert outcome(lambda: f(X)) == (0, 0, [])


def test_export_is_counted_only():
    inner = simple()

    class M(torch.nn.Module):
        def forward(self, x):
            return inner(x) + 1

    calls, _, texts = outcome(lambda: torch.export.export(M(), (X,), strict=False), times=1)
    assert calls >= 1
    assert texts == []


def test_a_program_that_raises_says_nothing():
    def f(x):
        raise ValueError("no")

    c = flashover.compile(f, backend="eager")

    def call():
        with pytest.raises(ValueError, match="no"):
            c(X)

    calls, _, texts = outcome(call)
    assert calls == 2
    assert texts == []


@pytest.mark.parametrize("mode", [Plain, Names])
def test_fullgraph_makes_it_an_error(mode):
    f = simple(fullgraph=True)
    with mode(), pytest.raises(exc.Unsupported, match="mode is active") as e:
        f(X)
    assert "test_eager.py:" in e.value.where


def test_a_debugger_does_not_break_fullgraph():
    f = simple(fullgraph=True)
    calls, _, texts = outcome(traced(lambda: f(X)))
    assert calls == 2
    assert len(texts) == 1


def test_the_warning_can_be_silenced(monkeypatch):
    f = simple(options={"eager_warning": False})
    assert outcome(within(Plain, lambda: f(X))) == (2, 0, [])
    monkeypatch.setenv("FLASHOVER_EAGER_WARNING", "0")
    f = simple()
    assert outcome(within(Plain, lambda: f(X))) == (2, 0, [])


def test_a_warning_may_be_an_error():
    f = simple()
    with warnings.catch_warnings(), Plain():
        warnings.simplefilter("error", exc.EagerWarning)
        with pytest.raises(exc.EagerWarning, match="runs eager"):
            f(X)


def test_what_is_captured_through_is_no_eager_call():
    inner = simple()
    outer = flashover.compile(lambda x: sum(map(inner, [x, x + 1])), backend="eager")
    assert outcome(lambda: outer(X)) == (0, 0, [])


def test_explain_says_it():
    e = None

    def f(x):
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Plain():
            e = flashover.explain(f)(X)
    assert "ran eager, call: a torch dispatch mode is active" in e.text()
    d = e.to_dict()
    assert d["eager_call_count"] == 1
    assert d["eager"][0]["cause"] == "state"


def test_a_first_call_under_a_profiler_is_compiled():
    import cProfile

    f = simple()
    profile = cProfile.Profile()
    profile.enable()
    try:
        f(X)
    finally:
        profile.disable()
    assert outcome(lambda: f(X)) == (0, 0, [])
    assert [e["compiled"] for e in f.entries()] == [True]
