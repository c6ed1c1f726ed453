"""The Python face: what compile() accepts and how its results behave, whatever the compiler behind it does."""

import copy
import functools
import inspect
import io
import os
import pickle
import sys
import textwrap
import threading
import warnings

import pytest
import torch
from interpreters import python

import flashover
from flashover import exc


@pytest.fixture(params=["eager", "flashover"])
def backend(request):
    return request.param


class Net(torch.nn.Module):
    """A small model."""

    def __init__(self, n=4):
        super().__init__()
        self.lin = torch.nn.Linear(n, n)
        self.norm = torch.nn.BatchNorm1d(n)
        self.drop = torch.nn.Dropout(0.5)
        self.tag = "net"

    def forward(self, x, *, scale=1.0):
        return self.drop(self.norm(self.lin(x))) * scale

    def helper(self):
        return self.tag + "!"


class Items(torch.nn.Sequential):
    pass


def function(x, y=2.0, *rest, k=3.0, **named):
    out = x * y + k
    for r in rest:
        out = out + r
    for key in named:
        out = out + named[key]
    return out


def net():
    torch.manual_seed(0)
    return Net().eval()


# ---- what compile() takes ----


def test_function(backend):
    c = flashover.compile(function, backend=backend)
    x = torch.randn(3)
    calls = [
        ((x,), {}),
        ((x, 3.0), {}),
        ((x, 3.0, x, 1), {}),
        ((x,), {"k": 7.0}),
        ((x,), {"y": x, "z": 2.0, "w": x}),
    ]
    for args, kwargs in calls:
        for _ in range(3):
            assert torch.equal(c(*args, **kwargs), function(*args, **kwargs))


@pytest.mark.parametrize("bad", [((), {}), ((1, 2), {"y": 3}), ((1,), {"x": 1})])
def test_wrong_arguments_raise_as_the_function_does(bad):
    c = flashover.compile(function, backend="eager")
    with pytest.raises(TypeError) as mine:
        c(*bad[0], **bad[1])
    with pytest.raises(TypeError) as theirs:
        function(*bad[0], **bad[1])
    assert str(mine.value) == str(theirs.value)


def test_decorator_with_and_without_arguments():
    @flashover.compile
    def a(x):
        "doc"
        return x + 1

    @flashover.compile(backend="eager", fullgraph=False)
    def b(x):
        return x + 1

    x = torch.ones(2)
    assert torch.equal(a(x), x + 1)
    assert torch.equal(b(x), x + 1)
    assert a.__name__ == "a"
    assert a.__doc__ == "doc"
    assert list(inspect.signature(a).parameters) == ["x"]


def test_methods(backend):
    class Thing:
        def __init__(self):
            self.k = 2.0

        @flashover.compile(backend=backend)
        def scaled(self, x):
            return x * self.k

        @flashover.compile(backend=backend)
        @staticmethod
        def plus(x):
            return x + 1

        def plain(self, x):
            return x - self.k

    t, x = Thing(), torch.ones(3)
    assert torch.equal(t.scaled(x), x * 2)
    t.k = 3.0
    assert torch.equal(t.scaled(x), x * 3)
    assert torch.equal(Thing.plus(x), x + 1)
    assert torch.equal(t.plus(x), x + 1)
    bound = flashover.compile(t.plain, backend=backend)
    assert torch.equal(bound(x), x - 3)
    t.k = 1.0
    assert torch.equal(bound(x), x - 1)


def test_other_callables(backend):
    class Callable:
        def __call__(self, x, k=1):
            return x + k

    x = torch.ones(3)
    for target in (
        functools.partial(function, y=5.0, k=1.0),
        Callable(),
        torch.relu,
        torch.nn.functional.gelu,
        lambda x: x * 2,
    ):
        c = flashover.compile(target, backend=backend)
        assert torch.equal(c(x), target(x))
        assert torch.equal(c(x), target(x))


def test_class():
    @flashover.compile(backend="eager")
    class Made(torch.nn.Module):
        def forward(self, x):
            return x + 1

    x = torch.ones(2)
    assert torch.equal(Made()(x), x + 1)


@pytest.mark.parametrize("bad", [3, "name", None, [1]])
def test_no_callable(bad):
    with pytest.raises(TypeError, match="callable"):
        flashover.compile(bad) if bad is not None else flashover.compile()(bad)


def test_unknown_names_are_listed():
    with pytest.raises(exc.InvalidBackend, match=r"'nope'.*eager.*flashover"):
        flashover.compile(function, backend="nope")
    with pytest.raises(exc.InvalidBackend, match="name or a callable"):
        flashover.compile(function, backend=3)
    with pytest.raises(exc.InvalidOptions, match=r"'fast'.*reduce-overhead.*max-autotune"):
        flashover.compile(function, mode="fast")
    with pytest.raises(exc.InvalidOptions, match=r"'nope'.*cache_dir"):
        flashover.compile(function, options={"nope": 1})
    with pytest.raises(exc.InvalidOptions, match="must be bool, not int"):
        flashover.compile(function, options={"cache": 1})
    with pytest.raises(RuntimeError, match="both"):
        flashover.compile(function, mode="default", options={"cache": True})
    with pytest.raises(TypeError, match="fullgraph"):
        flashover.compile(function, fullgraph=1)
    with pytest.raises(TypeError, match="dynamic"):
        flashover.compile(function, dynamic="yes")
    assert isinstance(exc.InvalidBackend("x"), RuntimeError)


def test_known_modes_and_options():
    x = torch.ones(2)
    for mode in flashover.list_modes():
        assert torch.equal(flashover.compile(function, mode=mode)(x), function(x))
    for name, (kind, default, doc) in flashover.list_options().items():
        value = {"bool": default == "True", "int": int(default) if kind == "int" else 0, "str": default}[kind]
        assert torch.equal(flashover.compile(function, options={name: value})(x), function(x))
        assert doc
    assert torch.equal(flashover.compile(function, options={"cache-dir": ""})(x), function(x))


def test_disable_argument():
    m = net()
    assert flashover.compile(m, disable=True) is m
    assert flashover.compile(function, disable=True) is function


# ---- compiled modules ----


def test_module_behaves_like_the_module(backend):
    m = net()
    c = flashover.compile(m, backend=backend)
    x = torch.randn(5, 4)
    with torch.no_grad():
        assert torch.equal(c(x), m(x))
        assert torch.equal(c(x, scale=2.0), m(x, scale=2.0))
    assert isinstance(c, Net)
    assert isinstance(c, torch.nn.Module)
    assert repr(c) == repr(m)
    assert type(c).__name__ == "Net"
    assert type(c).__doc__ == "A small model."
    assert c._orig_mod is m
    assert c.lin is m.lin
    assert c.helper() == "net!"
    assert list(c.state_dict()) == list(m.state_dict())
    assert [n for n, _ in c.named_parameters()] == [n for n, _ in m.named_parameters()]
    assert [n for n, _ in c.named_modules()] == [n for n, _ in m.named_modules()]
    c.extra = 7
    assert m.extra == 7
    del m.extra
    assert not hasattr(c, "extra")
    c.train()
    assert m.training
    assert m.lin.training
    m.eval()
    assert not c.training
    assert c.to(torch.float64) is c
    assert m.lin.weight.dtype == torch.float64
    assert c.half() is c
    c.zero_grad()
    c.requires_grad_(False)
    assert not m.lin.weight.requires_grad
    seen = []
    c.apply(lambda module: seen.append(type(module).__name__))
    assert seen[-1] == "Net"


def test_sequential_indexing(backend):
    m = Items(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2)).eval()
    c = flashover.compile(m, backend=backend)
    assert len(c) == 3
    assert c[0] is m[0]
    assert [type(x).__name__ for x in c] == ["Linear", "ReLU", "Linear"]
    with torch.no_grad():
        x = torch.randn(3, 2)
        assert torch.equal(c(x), m(x))
        c[0] = torch.nn.Identity()
        assert torch.equal(c(x), m(x))
        c.append(torch.nn.ReLU())
        assert torch.equal(c(x), m(x))
        assert len(m) == 4


def test_hooks_take_effect_at_once(backend):
    m = net()
    c = flashover.compile(m, backend=backend)
    x = torch.randn(5, 4)
    with torch.no_grad():
        plain = c(x)
        for target in (c, m, m.lin):
            seen = []

            def hook(module, args, out, seen=seen):
                seen.append(module)
                return out + 1

            handle = target.register_forward_hook(hook)
            hooked = c(x)
            assert torch.equal(hooked, m(x))
            assert not torch.equal(hooked, plain)
            handle.remove()
            assert torch.equal(c(x), plain)
        handle = c.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
        assert torch.equal(c(x), m(x))
        assert not torch.equal(c(x), plain)
        handle.remove()
        assert torch.equal(c(x), plain)


def test_state_dict_prefix():
    m = net()
    c = flashover.compile(m, options={"orig_mod_prefix": True}, backend="eager")
    assert list(c.state_dict()) == ["_orig_mod." + k for k in m.state_dict()]
    plain = flashover.compile(net(), backend="eager")
    for target in (c, plain):
        for source in (c.state_dict(), m.state_dict()):
            changed = type(source)((k, v + 1) for k, v in source.items())
            target.load_state_dict(changed)
            assert torch.equal(target.lin.weight, m.lin.weight) or target is plain
    with pytest.raises(RuntimeError, match="Missing key"):
        plain.load_state_dict({})
    torch_compiled = torch.compile(net(), backend="eager")
    plain.load_state_dict(torch_compiled.state_dict())
    c.load_state_dict(torch_compiled.state_dict())


def test_pickle_and_deepcopy(backend):
    m = net()
    c = flashover.compile(m, backend=backend)
    x = torch.randn(5, 4)
    with torch.no_grad():
        want = c(x)
        for other in (copy.deepcopy(c), copy.copy(c), pickle.loads(pickle.dumps(c))):
            assert isinstance(other, Net)
            assert other._orig_mod is not m
            assert torch.equal(other(x), want)
        deep = copy.deepcopy(c)
        deep.lin.weight.zero_()
        assert torch.equal(c(x), want)
        assert not torch.equal(deep(x), want)
        buffer = io.BytesIO()
        torch.save(c, buffer)
        buffer.seek(0)
        assert torch.equal(torch.load(buffer, weights_only=False)(x), want)
    f = pickle.loads(pickle.dumps(flashover.compile(function, backend=backend)))
    assert torch.equal(f(x), function(x))
    assert torch.equal(copy.deepcopy(f)(x), function(x))


def test_compiling_twice():
    m = net()
    c = flashover.compile(flashover.compile(m), backend="eager")
    assert c._orig_mod is m
    f = flashover.compile(flashover.compile(function), backend="eager")
    assert f.__wrapped__ is function


def test_module_inside_module(backend):
    inner = flashover.compile(net(), backend=backend)
    outer = torch.nn.Sequential(inner, torch.nn.ReLU()).eval()
    x = torch.randn(5, 4)
    with torch.no_grad():
        want = torch.relu(inner._orig_mod(x))
        assert torch.equal(outer(x), want)
        compiled = flashover.compile(outer, backend=backend)
        for _ in range(2):
            assert torch.allclose(compiled(x), want)
    entries = compiled._flashover_callable.entries()
    assert [e["compiled"] for e in entries] == [True], entries[0]["reason"]
    assert next(iter(outer.state_dict())) == "0.lin.weight"


def test_class_call_replaced_later(backend):
    class Local(torch.nn.Module):
        def forward(self, x):
            return x + 1

    m = Local()
    c = flashover.compile(m, backend=backend)
    x = torch.ones(2)
    assert torch.equal(c(x), x + 1)
    Local.__call__ = lambda self, x: x + 5
    assert torch.equal(c(x), x + 5)
    del Local.__call__
    assert torch.equal(c(x), x + 1)
    Local.forward = lambda self, x: x + 7
    assert torch.equal(c(x), x + 7)


def test_lazy_module(backend):
    m = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.ReLU()).eval()
    c = flashover.compile(m, backend=backend)
    x = torch.randn(2, 5)
    with torch.no_grad():
        assert torch.equal(c(x), m(x))
        assert torch.equal(c(x), m(x))


def test_compiled_function_inside_compiled_function(backend):
    @flashover.compile(backend=backend)
    def inner(x, k=2.0):
        return x * k

    class Holder:
        def __init__(self):
            self.k = 1.0

        @flashover.compile(backend=backend)
        def shift(self, x):
            return x + self.k

    h = Holder()
    bound = flashover.compile(h.shift.__func__.__wrapped__.__get__(h), backend=backend)

    def f(x):
        return inner(x) + inner(x, k=3.0) + h.shift(x) + bound(x)

    c = flashover.compile(f, backend=backend, fullgraph=True)
    x = torch.randn(3)
    assert torch.allclose(c(x), f(x))
    h.k = 5.0
    assert torch.allclose(c(x), f(x))
    assert c.entries()[0]["compiled"]


# ---- switches ----


def test_stance():
    c = flashover.compile(lambda x: x + 1, backend="eager")
    x = torch.ones(2)
    with flashover.set_stance("force_eager"):
        assert torch.equal(c(x), x + 1)
        assert c.entries() == []
    assert torch.equal(c(x), x + 1)
    assert len(c.entries()) == 1
    with flashover.set_stance("eager_on_recompile"):
        c(torch.ones(3))
        assert len(c.entries()) == 1
    with flashover.set_stance("fail_on_recompile"):
        c(x)
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            c(torch.ones(3))
    with pytest.raises(exc.UserError, match="force_eager"):
        flashover.set_stance("nope")
    with flashover.set_stance("eager_then_compile"):
        d = flashover.compile(lambda x: x + 1, backend="eager")
        d(x)
        assert d.entries() == []
        d(x)
        assert len(d.entries()) == 1


def test_stance_of_torch():
    x = torch.ones(2)
    c = flashover.compile(lambda x: x + 1, backend="eager")
    with torch.compiler.set_stance("force_eager"):
        assert torch.equal(c(x), x + 1)
        assert c.entries() == []
        with flashover.set_stance("eager_on_recompile"):
            c(x)
    c(x)
    assert len(c.entries()) == 1

    @torch.compiler.set_stance("fail_on_recompile")
    def strict(x):
        return c(x)

    strict(x)
    with pytest.raises(RuntimeError, match="fail_on_recompile"):
        strict(torch.ones(3))
    torch.compiler.set_stance("eager_on_recompile")
    try:
        assert torch.equal(c(torch.ones(3)), torch.ones(3) + 1)
        with flashover.set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match="fail_on_recompile"):
            c(torch.ones(3))
    finally:
        torch.compiler.set_stance("default")
    assert len(c.entries()) == 1
    again = flashover.set_stance("force_eager")
    flashover.set_stance("default")
    for _ in range(2):
        with again:
            c(torch.ones(4))
    assert len(c.entries()) == 1


def test_disable():
    @flashover.disable
    def plain(x):
        "doc"
        return x + 1

    @flashover.disable(reason="too odd")
    def odd(x):
        return plain(x) * 2

    x = torch.ones(2)
    assert plain.__doc__ == "doc"
    assert odd.reason == "too odd"
    assert torch.equal(odd(x), (x + 1) * 2)
    c = flashover.compile(lambda x: odd(x) - 1, backend="eager")
    assert torch.equal(c(x), (x + 1) * 2 - 1)
    assert any(e["breaks"] and "too odd" in e["reason"] for e in c.entries())
    assert flashover.disable(flashover.compile(function)).__disabled_function__ is function
    assert not flashover.is_compiling()
    with pytest.raises(TypeError):
        flashover.disable(3)


def test_reset_and_stats():
    c = flashover.compile(lambda x: x + 1, backend="eager")
    x = torch.ones(2)
    c(x)
    before = flashover.compile_stats()
    counted = {"frames", "graphs", "kernels", "graph_breaks", "extern_calls", "recompiles", "cache_hits"}
    assert set(before) == counted | {"eager_calls", "eager_frames"}
    assert all(type(v) is int for v in before.values())
    assert len(c.entries()) == 1
    flashover.reset()
    assert c.entries() == []
    assert flashover.compile_stats() == before
    c(x)
    after = flashover.compile_stats()
    assert all(after[k] >= before[k] for k in before)
    assert after["frames"] == before["frames"] + 1


def test_stance_as_a_decorator():
    c = flashover.compile(lambda x: x + 1, backend="eager")

    @flashover.set_stance("force_eager")
    def evaluate(x, scale=1):
        return c(x) * scale

    assert evaluate.__name__ == "evaluate"
    assert torch.equal(evaluate(torch.ones(2), scale=3), torch.full((2,), 6.0))
    assert c.entries() == []
    c(torch.ones(2))  # not while the function does not run
    assert len(c.entries()) == 1
    with flashover.set_stance("fail_on_recompile"):
        assert torch.equal(evaluate(torch.ones(3)), torch.full((3,), 2.0))
        with pytest.raises(RuntimeError, match=r"fail_on_recompile: x is a tensor .*size\(0\) is 3, not 2"):
            c(torch.ones(3))


def test_versions_are_tried_in_the_order_of_their_last_use():
    c = flashover.compile(lambda x: x + 1, backend="eager", dynamic=False)
    for n in (1, 2, 3, 1, 1, 2):
        assert torch.equal(c(torch.ones(n)), torch.ones(n) + 1)
    assert [(e["version"], e["hits"]) for e in c.entries()] == [(1, 2), (0, 3), (2, 1)]
    c(torch.ones(4))
    assert [m["version"] for m in c.entries()[0]["missed"]] == [1, 0, 2]


def test_calls_past_the_limit_cost_no_search_and_reset_forgets_it():
    c = flashover.compile(lambda x: x + 1, backend="eager", dynamic=False, options={"recompile_limit": 2})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for n in range(1, 7):
            assert torch.equal(c(torch.ones(n)), torch.ones(n) + 1)
    assert len(said) == 1
    assert "recompile_limit" in str(said[0].message)
    assert c.tallies()["recompiles"] == 1
    assert c.tallies()["eager_calls"] == 4
    c(torch.ones(2))  # what is compiled still serves
    assert c.tallies()["eager_calls"] == 4
    c.reset()
    c(torch.ones(6))
    assert [e["version"] for e in c.entries()] == [0]


def test_recompile_limit():
    c = flashover.compile(lambda x: x + 1, backend="eager", dynamic=False, options={"recompile_limit": 3})
    for n in range(1, 4):
        c(torch.ones(n))
    with pytest.warns(RuntimeWarning, match=r"compiled 3 times.*x is a tensor"):
        assert torch.equal(c(torch.ones(9)), torch.ones(9) + 1)
    assert torch.equal(c(torch.ones(10)), torch.ones(10) + 1)  # said once
    assert len(c.entries()) == 3
    strict = flashover.compile(
        lambda x: x + 1, backend="eager", dynamic=False, fullgraph=True, options={"recompile_limit": 1}
    )
    strict(torch.ones(1))
    with pytest.raises(exc.RecompileLimitExceeded, match="recompile_limit"):
        strict(torch.ones(2))


def test_fullgraph_raises_with_reason_and_place():
    def f(x):
        if x.sum() > 0:
            return x + 1
        return x - 1

    c = flashover.compile(f, fullgraph=True, backend="eager")
    with pytest.raises(exc.Unsupported) as e:
        c(torch.ones(2))
    assert "test_face.py" in e.value.where
    assert e.value.reason
    assert torch.equal(flashover.compile(f, backend="eager")(torch.ones(2)), torch.ones(2) + 1)


def test_tracer_active_runs_eager():
    c = flashover.compile(lambda x: x + 1, backend="eager")
    old = sys.gettrace()
    sys.settrace(lambda *a: None)
    try:
        c(torch.ones(2))
    finally:
        sys.settrace(old)
    assert c.entries() == []
    assert "tracer" in c.tallies()["skipped"]


def test_training_is_compiled():
    m = net()
    c = flashover.compile(m, backend="eager", fullgraph=True)
    x = torch.randn(5, 4)
    c(x).sum().backward()
    got = m.lin.weight.grad.clone()
    m.zero_grad()
    m(x).sum().backward()
    torch.testing.assert_close(got, m.lin.weight.grad)
    with torch.no_grad():
        c(x)


def test_explain():
    def f(x):
        return torch.relu(x + 1)

    report = flashover.explain(f, backend="eager")(torch.ones(3))
    d = report.to_dict()
    assert d["graph_count"] == 1
    assert d["op_count"] >= 2
    assert any("x is a tensor Float[3]" in g for g in d["guards"])
    assert "aten.relu" in report.text()
    assert set(d["graphs"][0]["stages"]) >= {"capture", "guards"}
    with pytest.raises(TypeError, match="nope"):
        flashover.explain(f, nope=1)

    def g(x):
        print(end="")
        return x + 1

    d = flashover.explain(g, backend="eager")(torch.ones(3)).to_dict()
    assert d["graph_break_count"] == 1
    assert "test_face.py" in d["breaks"][0]["where"]


def test_backends_registry():
    assert flashover.list_backends() == ["eager", "flashover"]
    with pytest.raises(exc.InvalidBackend, match="already"):
        flashover.register_backend(lambda gm, inputs: gm, name="eager")
    with pytest.raises(TypeError):
        flashover.register_backend(3)


def test_threads(backend):
    c = flashover.compile(lambda x: torch.relu(x + 1) * 2, backend=backend)
    errors = []

    def work(n):
        try:
            for i in range(50):
                x = torch.randn(1 + (n + i) % 4)
                assert torch.equal(c(x), torch.relu(x + 1) * 2)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    # Sizes share what is compiled for the second of them; the first is compiled alone, and so are those of threads that
    # begin beside it.
    assert len(c.entries()) in (2, 3, 4)


def test_recursion(backend):
    @flashover.compile(backend=backend)
    def down(x, n):
        return x if n == 0 else down(x + 1, n - 1)

    x = torch.zeros(2)
    assert torch.equal(down(x, 3), x + 3)
    assert torch.equal(down(x, 5), x + 5)


def test_no_leak():
    m = net()
    c = flashover.compile(m, backend="eager")
    x = torch.randn(5, 4)
    with torch.no_grad():
        c(x)
    import gc
    import weakref

    refs = [weakref.ref(m), weakref.ref(m.lin.weight), weakref.ref(c)]
    del m, c
    gc.collect()
    assert [r() for r in refs] == [None] * 3


# ---- in a process of its own ----


def run(code, **env):
    done = python("-c", textwrap.dedent(code), env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done


def test_import_is_light():
    out = run("""
        import sys, os
        import torch
        before, tasks = set(sys.modules), len(os.listdir("/proc/self/task"))
        import flashover
        flashover.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        new = set(sys.modules) - before
        heavy = [m for m in new if m.startswith(("torch._dynamo", "torch._functorch", "torch._inductor", "torch.fx"))]
        print(len(os.listdir("/proc/self/task")) - tasks, torch.cuda.is_initialized(), heavy)
    """).stdout.split(maxsplit=2)
    assert out[0] == "0"
    assert out[1] == "False"
    assert out[2].strip() == "[]"


def test_logs_and_dump(tmp_path):
    code = """
        import torch, flashover
        c = flashover.compile(lambda x: torch.relu(x + 1), backend="eager")
        c(torch.ones(2)); c(torch.ones(3))
        flashover.compile(lambda x: print(x), backend="eager")(torch.ones(2))
    """
    err = run(code, FLASHOVER_LOGS="all", FLASHOVER_DUMP=str(tmp_path)).stderr
    assert "[flashover graph]" in err
    assert "aten.relu" in err
    assert "[flashover guards]" in err
    assert "[flashover recompiles]" in err
    assert "[flashover breaks]" in err
    assert "[flashover times]" in err
    assert any("aten.relu" in p.read_text() for p in tmp_path.iterdir())
    assert run(code).stderr == ""
    bad = python("-c", "import flashover", env={**os.environ, "FLASHOVER_LOGS": "grpah"})
    assert "no topic 'grpah'" in bad.stderr
    assert "recompiles" in bad.stderr


def test_unwritable_dump_is_said_once(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    code = """
        import torch, flashover
        c = flashover.compile(lambda x: x + 1, backend="eager")
        c(torch.ones(2)); c(torch.ones(3))
    """
    assert run(code, FLASHOVER_DUMP=str(file)).stderr.count("cannot write") == 1


def test_another_thread_uses_the_module_during_a_capture():
    """A capture swaps the module's parameters for trace tensors; other threads must not notice."""
    torch.manual_seed(0)
    m = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(8)]).eval()
    x = torch.randn(4, 16)
    with torch.no_grad():
        want = m(x)
    over, wrong, calls = threading.Event(), [], []

    def work():
        with torch.no_grad():
            while not over.is_set() and not wrong:
                try:
                    calls.append(torch.equal(m(x), want))
                except BaseException as e:
                    wrong.append(e)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    with torch.no_grad():
        for _ in range(30):
            assert torch.equal(flashover.compile(m, backend="eager")(x), want)
    over.set()
    for t in threads:
        t.join()
    assert not wrong
    assert calls
    assert all(calls)
