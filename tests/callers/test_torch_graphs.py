"""Backends that others write get the program's calls of torch, as torch.compile hands them out: torch.compile itself,
with its own capture, is the judge of what is in the graphs; eager of what they compute, gradients included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import flashover
from flashover import exc


class Recorder:
    """A backend that runs the graph as it is."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.examples: list[list[torch.Tensor]] = []

    def __call__(self, module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., Any]:
        assert isinstance(module, torch.fx.GraphModule)
        module.graph.lint()
        assert len([n for n in module.graph.nodes if n.op == "placeholder"]) == len(examples)
        self.graphs.append(module)
        self.examples.append(list(examples))
        return module.forward

    def calls(self) -> list[str]:
        return [called(n) for g in self.graphs for n in g.graph.nodes if n.op.startswith("call")]


def called(node: torch.fx.Node) -> str:
    if node.target == "__eq__":  # torch.compile's way to say a == b
        return "call_function eq"
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return f"{node.op} {target}"


def pointwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + y.cos() * 2 - torch.add(x, y, alpha=3) / 2


def operators(x: torch.Tensor, y: torch.Tensor) -> Any:
    return -x, x @ y.T, x**2, 1 - x, x > y, (x > 0) & (y > 0), x == y, 2 * x


def functional(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.gelu(x) + F.softmax(y, dim=-1) + F.layer_norm(x, [4]) + F.dropout(y, 0.5, False) + torch.relu(y)


def subscripts(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[0] + y[:, 1:3].sum() + x[..., -1].mean() + y[None, 1]


def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x * 2
    z[0] = y[1]
    z.add_(1)
    z += y
    return z.view(-1)


def several_results(x: torch.Tensor, y: torch.Tensor) -> Any:
    values, indices = torch.topk(x, 2)
    a, b = y.split(2, dim=1)
    return values + a, indices, torch.cat([a, b], dim=1), x.max(dim=1).values


def methods(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.permute(1, 0).reshape(4, -1).contiguous() + y.t().clone().to(torch.float32) + x.mT.norm()


def factories(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(3, 4) + torch.arange(4) + torch.zeros_like(y) + torch.tensor([1.0, 2.0, 3.0, 4.0])


def without_gradients(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x.abs().mean() + 1
    return y / scale + x.detach() * y


def helper(x: torch.Tensor) -> torch.Tensor:
    return x.sigmoid() * x


def inlined(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for t in (x, y):
        x = x + helper(t)
    return x


PROGRAMS = [
    pointwise, operators, functional, subscripts, writes, several_results, methods, factories, without_gradients,
    inlined,
]  # fmt: skip


def results(run: Callable[..., Any], trains: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x, y = torch.randn(3, 4, requires_grad=trains), torch.randn(3, 4, requires_grad=trains)
    out = run(x, y)
    out = list(out) if isinstance(out, tuple) else [out]
    if trains:
        sum(o.sum() for o in out if o.requires_grad).backward()  # type: ignore[union-attr]
        out += [t.grad for t in (x, y) if t.grad is not None]
    return out


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_graphs_are_torch_compiles(program: Callable[..., Any], trains: bool) -> None:
    torch._dynamo.reset()
    ours, theirs = Recorder(), Recorder()
    got = results(flashover.compile(program, backend=ours, fullgraph=True), trains)
    want = results(program, trains)
    results(torch.compile(program, backend=theirs, fullgraph=True), trains)
    for a, b in zip(got, want, strict=True):
        assert a.requires_grad == b.requires_grad and a.shape == b.shape
        torch.testing.assert_close(a, b)
    assert ours.calls() == theirs.calls()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.log_softmax(self.layers(x), -1)


def test_a_module() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    ours, theirs = Recorder(), Recorder()
    states = []
    for backend in (ours, theirs, None):
        torch.manual_seed(0)
        net = Net()
        run = {ours: flashover.compile, theirs: torch.compile, None: None}[backend]
        model = net if run is None else run(net, backend=backend, fullgraph=True)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().sum().backward()
            optimizer.step()
        states.append(net.state_dict())
    assert ours.calls() == theirs.calls()
    assert len(ours.graphs) == 1
    assert sorted(e.shape for e in ours.examples[0]) == sorted(e.shape for e in theirs.examples[0])
    for ours_, theirs_, eager in zip(*(s.values() for s in states), strict=True):
        torch.testing.assert_close(ours_, eager)
        torch.testing.assert_close(theirs_, eager)


def test_example_values() -> None:
    seen = Recorder()
    flashover.compile(pointwise, backend=seen, fullgraph=True)(torch.randn(3, 4), torch.randn(3, 4))
    for node in seen.graphs[0].graph.nodes:
        if node.op != "output":
            value = node.meta["example_value"]
            assert type(value).__name__ == "FakeTensor" and value.shape == (3, 4)
        if node.op.startswith("call"):
            assert "test_torch_graphs.py" in node.meta["stack_trace"]


def test_graph_breaks() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        flashover.graph_break()
        return x.cos() + 1

    seen = Recorder()
    x = torch.randn(3)
    assert torch.equal(flashover.compile(f, backend=seen)(x), f(x))
    assert [[called(n) for n in g.graph.nodes if n.op.startswith("call")] for g in seen.graphs] == [
        ["call_method sin"],
        ["call_method cos", "call_function add"],
    ]


@pytest.mark.parametrize(
    "name",
    ["eager", "aot_eager", "aot_eager_decomp_partition", "aot_eager_default_partitioner", "eager_noexcept",
     "eager_debug", "pre_dispatch_eager", "invoke_subgraph", "ts", "aot_ts", "cudagraphs", "inductor"],
)  # fmt: skip
def test_torchs_backends_by_name(name: str) -> None:
    """Training, where the backend trains; with batch norm, which writes its statistics."""
    # pre_dispatch_eager computes once more when it compiles, and leaves no gradients; inductor takes a minute to train.
    trains = name not in ("pre_dispatch_eager", "inductor")
    torch.manual_seed(0)
    net, eager = Net(), Net()
    eager.load_state_dict(net.state_dict())
    net.train(trains), eager.train(trains)
    fast = flashover.compile(net, backend=name, fullgraph=True)
    for _ in range(3):
        x = torch.randn(5, 4)
        with torch.set_grad_enabled(trains):
            got, want = fast(x), eager(x)
            torch.testing.assert_close(got, want)
        if trains:
            got.square().sum().backward()
            want.square().sum().backward()
            for a, b in zip(net.parameters(), eager.parameters(), strict=True):
                torch.testing.assert_close(a.grad, b.grad)
        for (k, a), b in zip(net.state_dict().items(), eager.state_dict().values(), strict=True):
            assert torch.allclose(a, b), k


def test_an_unknown_name() -> None:
    with pytest.raises(exc.InvalidBackend, match=r"aot_egaer.*aot_eager"):
        flashover.compile(pointwise, backend="aot_egaer")


def test_backward_compilers_are_called() -> None:
    from torch._dynamo.backends.common import aot_autograd

    forward: list[str] = []
    backward: list[str] = []

    def compiler(into: list[str]) -> Callable[..., Any]:
        def compile_part(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
            into.append(module.code)
            return module.forward

        return compile_part

    backend = aot_autograd(fw_compiler=compiler(forward), bw_compiler=compiler(backward))
    x = torch.randn(3, requires_grad=True)
    flashover.compile(lambda x: x.sin() * 2, backend=backend, fullgraph=True)(x).sum().backward()
    assert torch.allclose(x.grad, x.detach().cos() * 2)
    assert len(forward) == len(backward) == 1
    assert "cos" in backward[0]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 5


def hooked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x * y
    z.register_hook(lambda g: g * 3)
    return z.sin()


def own_function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return Doubled.apply(x) * y


def in_autocast(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ y.T).float()


def mapped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.func.vmap(lambda a, b: a * b + a.sum())(x, y)


def iterated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([row.sum() for row in x]) + sum(y.unbind(0)).mean()  # type: ignore[union-attr]


def gradient_inside(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (g,) = torch.autograd.grad((x.detach().requires_grad_() ** 2).sum(), [x]) if False else (x * 2,)
    return g + y


def list_changed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    parts = [x, y]
    z = torch.cat(parts)
    parts.append(z)
    return torch.cat(parts).exp()


@pytest.mark.parametrize(
    "program", [hooked, own_function, in_autocast, mapped, iterated, gradient_inside, list_changed]
)
def test_what_calls_do_not_say_is_right_all_the_same(program: Callable[..., Any]) -> None:
    """Such programs come as operators of ATen, with their gradients beside them, where their calls do not say all."""
    for backend in (Recorder(), "aot_eager"):
        got = results(flashover.compile(program, backend=backend), True)
        want = results(program, True)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


def test_what_changes_under_way() -> None:
    """Numbers and sizes that change from call to call."""

    def f(x: torch.Tensor, n: float) -> torch.Tensor:
        return x.reshape(-1, 2) * n

    seen = Recorder()
    compiled = flashover.compile(f, backend=seen)
    for size in (2, 4, 6):
        for n in (1.5, 2.5, 3.5):
            x = torch.randn(size, requires_grad=True)
            out = compiled(x, n)
            out.sum().backward()
            assert torch.equal(out, f(x, n)) and torch.equal(x.grad, torch.full((size,), n))


def checked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if not torch.isfinite(x).all():
        raise ValueError("not finite")
    return x * y


def test_checks_of_what_is_taken_for_granted() -> None:
    """The graph of a program that would raise has a check, which no call of torch's says. (A backend's error is not
    taken back, so it is the check's.)"""
    compiled = flashover.compile(checked, backend=Recorder())
    x, y = torch.randn(3), torch.randn(3)
    for _ in range(2):
        assert torch.equal(compiled(x, y), x * y)
    with pytest.raises(RuntimeError, match="Expected Tensor with single nonzero value"):
        compiled(x / 0, y)


def selected(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[x > 0].exp().sum() + y.nonzero().shape[0]


def test_sizes_that_follow_from_data() -> None:
    compiled = flashover.compile(selected, backend=Recorder())
    for seed in range(4):
        torch.manual_seed(seed)
        x, y = torch.randn(5), torch.randn(5).relu()
        torch.testing.assert_close(compiled(x, y), selected(x, y))


def of_numbers(x: torch.Tensor) -> Any:
    return x * x.max().item(), 2 * x.sum().item() + 1, x.tolist()


def as_many(x: torch.Tensor) -> Any:
    n = x.abs().sum().long().item()
    return torch.zeros(n + 1) + 1, n


def found(x: torch.Tensor) -> Any:
    return x[x > 0].reshape(-1, 1).expand(-1, 2) + 1, x.nonzero().shape[0] + 2


def squeezed(x: torch.Tensor) -> torch.Tensor:
    return x.masked_select(x > 0).squeeze() + torch.ones(1)


@pytest.mark.parametrize("f", [of_numbers, as_many, found, squeezed, selected])
@pytest.mark.parametrize("backend", ["recorder", "aot_eager"])
def test_data_in_whole_graphs(f: Callable[..., Any], backend: str) -> None:
    """One graph for all data: numbers and sizes are nodes of it, and what the trace took for granted is checked."""
    recorder = Recorder()
    compiled = flashover.compile(f, fullgraph=True, backend=recorder if backend == "recorder" else backend)
    args = 2 if f is selected else 1
    for values in ([1.5, -2.0, 3.0], [0.0, 2.5, 4.0], [-7.0, 1.0, 0.0], [3.0, 2.0, 1.0], [-1.0, -2.0, -3.0]):
        x = [torch.tensor(values) * (k + 1) for k in range(args)]
        torch.testing.assert_close(compiled(*x), f(*x))
    if backend == "recorder":
        assert len(recorder.graphs) == 1


def test_optimizers() -> None:
    for make in (torch.optim.SGD, torch.optim.Adam, lambda p: torch.optim.AdamW(p, foreach=True)):
        weights = []
        for compiles in (False, True):
            torch.manual_seed(0)
            net = Net()
            optimizer = make(net.parameters())
            step = flashover.compile(optimizer.step, backend=Recorder()) if compiles else optimizer.step
            for _ in range(3):
                optimizer.zero_grad()
                net(torch.randn(6, 4)).square().sum().backward()
                step()
            weights.append([p.detach().clone() for p in net.parameters()])
        for a, b in zip(*weights, strict=True):
            torch.testing.assert_close(a, b)


def test_state_of_modules_and_views_of_inputs() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> Any:
            self.seen += x.shape[0]
            x[0] = 0
            return x.view(-1), x, x.detach(), self.seen

    net = Counter()
    compiled = flashover.compile(net, backend=Recorder(), fullgraph=True)
    for n in range(1, 4):
        x = torch.ones(2, 3)
        version = x._version
        flat, same, detached, seen = compiled(x)
        assert same is x and flat._base is x and detached.data_ptr() == x.data_ptr() and seen is net.seen
        assert x._version == version + 1 and net.seen == 2 * n and x[0].sum() == 0


def test_written_inputs_that_lead_to_gradients() -> None:
    """The trace hands such writes to autograd together with the backward, so the graph is one of operators."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[1:] = y[:-1] * 2
        return x + 1

    found = []
    for run in (f, flashover.compile(f, backend=(seen := Recorder()), fullgraph=True)):
        torch.manual_seed(0)
        x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
        written = x * 3
        run(written, y).square().sum().backward()
        found.append([written.detach(), x.grad, y.grad])
    assert len(seen.graphs) == 1
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_a_number_that_grows_by_a_tensor_is_a_sum() -> None:
    """In the graph `number += tensor` is no statement: its target would have no name."""

    def f(x: torch.Tensor) -> Any:
        a, b = 1, 2.0
        a += x
        b -= x
        b *= 3
        return a, b

    recorder = Recorder()
    x = torch.randn(3)
    torch.testing.assert_close(flashover.compile(f, backend=recorder, fullgraph=True)(x), f(x))
    assert [c.split()[1] for c in recorder.calls()][:2] == ["add", "sub"]


class OfItsSize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.size = x.size(0)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * ctx.size


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_function_of_autograd_over_sizes_that_change(fullgraph: bool) -> None:
    """No form of torch.fx holds it with symbols: each size is a graph of its own."""
    fast = flashover.compile(lambda x: OfItsSize.apply(x), backend=Recorder(), fullgraph=fullgraph, dynamic=True)
    for n in (2, 5, 2):
        x = torch.ones(n, requires_grad=True)
        fast(x).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [n] * n
