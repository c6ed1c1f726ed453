"""Backends written in Python: they get a GraphModule and example inputs, and return a callable."""

import textwrap
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from interpreters import python

import flashover
from flashover import exc, fx_graph


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.lin = torch.nn.Linear(4, 2)
        self.register_buffer("table", torch.arange(2.0))

    def forward(self, x):
        x = F.gelu(self.norm(self.conv(x)))
        a, b = x.chunk(2, dim=1)
        x = torch.cat([b, a * 2 + 1], 1).mean((2, 3))
        return {"out": self.lin(x) + self.table, "top": x.topk(2).indices, "k": torch.tensor([1.0, 2.0]) * 3}


def collecting(seen):
    def backend(gm, inputs):
        assert isinstance(gm, torch.fx.GraphModule)
        assert all(isinstance(i, torch.Tensor | torch.SymInt) for i in inputs)
        gm.graph.lint()
        placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        assert len(placeholders) == len(inputs)
        seen.append(gm)
        return gm.forward

    return backend


def test_graph_module_computes_the_same():
    m, seen = Net().eval(), []
    c = flashover.compile(m, backend=collecting(seen), fullgraph=True)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        for _ in range(2):
            got, want = c(x), m(x)
            assert got.keys() == want.keys()
            assert all(torch.equal(got[k], want[k]) for k in want)
        assert len(seen) == 1
        for rows in (3, 5):  # the batch is a symbol from the second size on
            y = torch.randn(rows, 3, 8, 8)
            assert torch.equal(c(y)["out"], m(y)["out"])
    assert len(seen) == 2
    assert "conv2d" in seen[0].code


def test_writes_and_views():
    def f(x):
        x.mul_(2)
        x[0].add_(1)
        return x.view(-1)[1:], x + 1.5, x.sum() * 2

    seen = []
    c = flashover.compile(f, backend=collecting(seen), fullgraph=True)
    for _ in range(3):
        mine = torch.randn(3, 4)
        theirs = mine.clone()
        got, want = c(mine), f(theirs)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
        assert torch.equal(mine, theirs)
        assert got[0].data_ptr() == mine.data_ptr() + 4


def test_registered_name():
    seen = []
    flashover.register_backend(collecting(seen), name="collect")
    try:
        assert "collect" in flashover.list_backends()
        x = torch.randn(3)
        assert torch.equal(flashover.compile(lambda x: x + 1, backend="collect")(x), x + 1)
        assert len(seen) == 1
    finally:
        from flashover import backends

        del backends._registered["collect"]


def test_faults_of_a_backend():
    def raises(gm, inputs):
        raise KeyError("oops")

    x = torch.randn(3)
    with pytest.raises(exc.BackendCompilerFailed, match="oops") as e:
        flashover.compile(lambda x: x + 1, backend=raises)(x)
    assert isinstance(e.value.__cause__, KeyError)
    with pytest.raises(exc.BackendCompilerFailed, match="must return a callable"):
        flashover.compile(lambda x: x + 1, backend=lambda gm, i: None)(x)
    with pytest.raises(TypeError, match="where a tensor was due"):
        flashover.compile(lambda x: x + 1, backend=lambda gm, i: lambda *a: (1,))(x)
    with pytest.raises(ValueError, match="2 tensors, the graph has 1"):
        flashover.compile(lambda x: x + 1, backend=lambda gm, i: lambda *a: (x, x))(x)

    def interrupted(gm, inputs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flashover.compile(lambda x: x + 1, backend=interrupted)(x)


def test_exception_at_run_time_passes():
    def backend(gm, inputs):
        def run(*args):
            raise IndexError("at run time")

        return run

    with pytest.raises(IndexError, match="at run time"):
        flashover.compile(lambda x: x + 1, backend=backend)(torch.ones(1))


def test_backend_may_call_compiled_code():
    inner = flashover.compile(lambda x: x * 2, backend="eager")

    def backend(gm, inputs):
        assert torch.equal(inner(torch.ones(2)), torch.ones(2) * 2)
        return gm.forward

    c = flashover.compile(lambda x: x + 1, backend=backend)
    assert torch.equal(c(torch.ones(2)), torch.ones(2) + 1)


def test_names_are_identifiers():
    assert fx_graph._name("self.blocks[0].weight", 0).isidentifier()
    assert fx_graph._name("3x", 1).isidentifier()
    assert fx_graph._name("", 2).isidentifier()


def test_behind_torch_compile():
    from flashover import torch_entry

    m = Net().eval()
    made = []

    def backend(gm, inputs, **kwargs):
        made.append(torch_entry.backend(gm, inputs, **kwargs))
        return made[-1]

    c = torch.compile(m, backend=backend)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        for _ in range(2):
            got, want = c(x), m(x)
            assert all(torch.allclose(got[k], want[k], atol=1e-5) for k in want)
    entries = [g.entries() for g in made]
    assert entries
    assert all(e and e[0]["compiled"] for e in entries), entries


def small_net() -> torch.nn.Module:
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Dropout(0.0), nn.Linear(8, 2), nn.Softmax(1))


def test_training_through_a_custom_backend() -> None:
    """The backend gets the forward of the training graph; gradients and running statistics are eager's."""
    seen = []

    def backend(gm: torch.fx.GraphModule, examples: list[torch.Tensor]):
        assert isinstance(gm, torch.fx.GraphModule)
        gm.graph.lint()
        seen.append([tuple(e.shape) for e in examples])
        return gm.forward

    def train(model: torch.nn.Module, run) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for i in range(3):
            x = torch.arange(12.0).reshape(3, 4) * 0.1 + i
            loss = run(x).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [loss.detach(), *model.state_dict().values()]

    eager, net = small_net(), small_net()
    want = train(eager, eager)
    got = train(net, flashover.compile(net, backend=backend, fullgraph=True))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    assert len(seen) == 1
    assert (3, 4) in seen[0]


def test_a_backend_that_rewrites_the_graph() -> None:
    def backend(gm: torch.fx.GraphModule, examples: list[torch.Tensor]):
        for node in gm.graph.nodes:
            if node.target == "sin":
                node.target = "cos"
        gm.recompile()
        return gm

    x = torch.randn(3)
    assert torch.allclose(flashover.compile(lambda x: x.sin() + 1, backend=backend)(x), x.cos() + 1)


def test_a_backend_that_raises() -> None:
    def backend(gm: torch.fx.GraphModule, examples: list[torch.Tensor]):
        raise ValueError("not today")

    with pytest.raises(flashover.exc.BackendCompilerFailed, match="not today") as e:
        flashover.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert isinstance(e.value.__cause__, ValueError)


def test_results_of_detach_are_tensors_of_their_own() -> None:
    def f(x):
        y = x * 2
        return x.detach(), y, y.detach(), x

    x = torch.randn(3)
    for backend in ("eager", "flashover", lambda gm, examples: gm.forward):
        a, b, c, d = flashover.compile(f, backend=backend, fullgraph=True)(x)
        assert a is not x and d is x and b is not c
        assert a.data_ptr() == x.data_ptr() and c.data_ptr() == b.data_ptr()


def test_torch_compile_knows_the_backend():
    """By the entry point (python/flashover.egg-info in the source tree), with nothing of torch's captured."""
    code = """
        import torch
        m, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), torch.randn(2, 4)
        with torch.no_grad():
            want = m(x)
            fast = torch.compile(m, backend="flashover")
            assert all(torch.allclose(fast(x), want, atol=1e-6) for _ in range(3))
            m.compile(backend="flashover")
            assert torch.allclose(m(x), want, atol=1e-6)
        import flashover
        stats = flashover.compile_stats()
        assert stats["graphs"] > 0 and stats["graph_breaks"] == stats["recompiles"] == 0, stats
    """
    done = python("-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr


def test_numbers_in_a_users_graph() -> None:
    def f(x: torch.Tensor, z: float, n: int) -> tuple[torch.Tensor, ...]:
        total = x.sum()
        return x * z + n, total * z, total.half() + z, torch.full((2,), z), x.long() * n, torch.add(x, x, alpha=z), x**n

    for backend in ("eager", None):
        seen: list[str] = []

        def custom(gm: torch.fx.GraphModule, examples: list[torch.Tensor], seen: list[str] = seen) -> Any:
            seen.append(gm.code)
            return gm.forward

        c = flashover.compile(f, backend=backend or custom, fullgraph=True)
        results = [(c(torch.arange(3.0), z, n), f(torch.arange(3.0), z, n)) for z, n in ((1.5, 2), (2.5, 3), (3.5, 4))]
        for got, want in results:
            torch.testing.assert_close(got, want)
        if backend is None:  # as constants first, as inputs when they were seen to change
            assert len(seen) == 2
            assert "l_z_" not in seen[0] and "l_n_" not in seen[0]
            assert "item = l_z_.item()" in seen[1] and "l_x_ ** l_n_" in seen[1]


def test_a_module_each_has_versions_of_its_own() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.rand(3))

        @flashover.compile(backend="eager", fullgraph=True)
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    blocks, x = [Block() for _ in range(12)], torch.rand(3)
    before = flashover.compile_stats()
    for _ in range(2):
        for block in blocks:
            assert torch.equal(block(x), x * block.scale)
    after = flashover.compile_stats()
    assert after["frames"] - before["frames"] == 12 and after["recompiles"] == before["recompiles"]
