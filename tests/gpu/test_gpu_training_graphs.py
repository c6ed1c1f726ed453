"""Training steps under CUDA graphs (mode="reduce-overhead"): as eager's, whatever is kept, repeated or left out."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gpu_tools import waits
from torch.utils.checkpoint import checkpoint

import flashover
from flashover import _C

pytestmark = pytest.mark.gpu


class Net(torch.nn.Module):
    """Convolutions, batch norm, products: what operators and kernels write is kept for the backward."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 16, 3, padding=1, bias=False), torch.nn.BatchNorm2d(16)
        self.down, self.dropout = torch.nn.Conv2d(16, 32, 3, stride=2), torch.nn.Dropout(dropout)
        self.up, self.head = torch.nn.Linear(32, 64), torch.nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.down(F.relu(self.norm(self.conv(x))))).mean((2, 3))
        return self.head(self.dropout(F.gelu(self.up(x))))


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def pair(dropout: float = 0.0, mode: str | None = "reduce-overhead") -> tuple[Net, Any, Net]:
    """A model, its compiled form, and a twin for eager."""
    flashover.reset()
    torch.manual_seed(0)
    model = Net(dropout).cuda()
    return model, flashover.compile(model, fullgraph=True, mode=mode), copy.deepcopy(model)


def image(n: int = 4, size: int = 16) -> torch.Tensor:
    return torch.randn(n, 3, size, size, device="cuda")


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def same(a: list[torch.Tensor], b: list[torch.Tensor], tolerance: float = 1e-3) -> None:
    assert len(a) == len(b) > 0
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


def same_state(model: torch.nn.Module, eager: torch.nn.Module) -> None:
    same(list(model.state_dict().values()), list(eager.state_dict().values()))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, 0.05, momentum=0.9), torch.optim.AdamW])
def test_steps(make: Callable[..., torch.optim.Optimizer], precision: str) -> None:
    model, fast, eager = pair()
    mine, theirs = make(model.parameters()), make(eager.parameters())
    before = _C._graph_replays()
    tolerance = 1e-3 if precision == "fp32" else 3e-2
    for _ in range(8):
        x = image()
        for m, optimizer in ((fast, mine), (eager, theirs)):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
                loss = m(x).float().square().mean()
            loss.backward()
        same(gradients(model), gradients(eager), tolerance)
        same(list(model.buffers()), list(eager.buffers()), tolerance)
        mine.step(), theirs.step()
        with torch.no_grad():  # small differences do not add up
            for p, q in zip(model.parameters(), eager.parameters(), strict=True):
                q.copy_(p)
    assert _C._graph_replays() - before >= 12


def test_loss_inside() -> None:
    """A step whose loss is part of the graph; the learning rate moves the parameters in place."""
    flashover.reset()
    model, _, eager = pair()
    fast = flashover.compile(lambda x, y: F.cross_entropy(model(x), y), fullgraph=True, mode="reduce-overhead")
    kept = []
    for step in range(6):
        x, y = image(), torch.randint(0, 5, (4,), device="cuda")
        model.zero_grad(), eager.zero_grad()
        loss, expected = fast(x, y), F.cross_entropy(eager(x), y)
        loss.backward(), expected.backward()
        kept.append((loss.detach(), expected.detach()))
        same(gradients(model), gradients(eager))
        with torch.no_grad():
            for p, q in zip(model.parameters(), eager.parameters(), strict=True):
                p.sub_(p.grad, alpha=0.01 * step), q.sub_(q.grad, alpha=0.01 * step)
    for a, b in kept:
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_two_shapes() -> None:
    model, fast, eager = pair()
    before = _C._graph_replays()
    for i in range(12):
        x = image(2 + i % 2, 16 if i % 2 else 12)
        model.zero_grad(), eager.zero_grad()
        fast(x).square().mean().backward(), eager(x).square().mean().backward()
        same(gradients(model), gradients(eager))
    same_state(model, eager)
    assert _C._graph_replays() > before


def test_two_forwards_two_backwards() -> None:
    model, fast, eager = pair()
    for _ in range(8):
        a, b = image(), image()
        model.zero_grad(), eager.zero_grad()
        for m in (fast, eager):
            first, second = m(a).square().mean(), m(b).exp().mean()
            second.backward()
            first.backward()
        same(gradients(model), gradients(eager))
    same_state(model, eager)


def test_accumulated() -> None:
    model, fast, eager = pair()
    for i in range(10):
        x = image()
        if i % 3 == 0:
            model.zero_grad(set_to_none=i % 2 == 0), eager.zero_grad(set_to_none=i % 2 == 0)
        fast(x).square().mean().backward(), eager(x).square().mean().backward()
        same(gradients(model), gradients(eager))


def test_gradients_kept() -> None:
    """Nothing that was handed out is written again."""
    model, fast, eager = pair()
    kept, expected = [], []
    for _ in range(6):
        x = image().requires_grad_()
        y = x.detach().clone().requires_grad_()
        model.zero_grad(), eager.zero_grad()
        out, other = fast(x), eager(y)
        out.square().mean().backward(), other.square().mean().backward()
        kept += [out.detach(), x.grad, *gradients(model)]
        expected += [other.detach().clone(), y.grad.clone(), *(g.clone() for g in gradients(eager))]
    same(kept, expected)


def test_retained() -> None:
    model, fast, eager = pair()
    for _ in range(8):
        x = image()
        model.zero_grad(), eager.zero_grad()
        for m in (fast, eager):
            loss = m(x).square().mean()
            loss.backward(retain_graph=True)
            loss.backward()
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
        same(gradients(model), gradients(eager))


def test_outputs_together() -> None:
    """Results of several calls lead into one backward; some lead nowhere."""
    model, fast, eager = pair()
    for _ in range(8):
        a, b, c = image(), image(), image()
        model.zero_grad(), eager.zero_grad()
        for m in (fast, eager):
            first = m(a)
            unused = m(c)
            second = m(b)
            ((first * second).mean() + 0 * unused.detach().mean()).backward()
        same(gradients(model), gradients(eager))
    same_state(model, eager)


def test_without_backward() -> None:
    model, fast, eager = pair()
    outs = []
    for i in range(9):
        x = image()
        outs.append((fast(x), eager(x)))
        if i % 4 == 3:
            for a, b in outs:
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
            model.zero_grad(), eager.zero_grad()
            outs[-1][0].mean().backward(), outs[-1][1].mean().backward()
            same(gradients(model), gradients(eager))
            outs.clear()
    same_state(model, eager)


def test_saved_tensors_hooks() -> None:
    model, fast, eager = pair()
    for i in range(6):
        x = image()
        model.zero_grad(), eager.zero_grad()
        for m in (fast, eager):
            if i % 2:
                with torch.autograd.graph.save_on_cpu():
                    out = m(x)
            else:
                out = m(x)
            out.square().mean().backward()
        same(gradients(model), gradients(eager))


def test_checkpoint_outside() -> None:
    """The forward runs again in the backward, under hooks that drop what is saved."""
    model, fast, eager = pair()
    for _ in range(6):
        x = image()
        model.zero_grad(), eager.zero_grad()
        for m in (fast, eager):
            checkpoint(m, x, use_reentrant=False).square().mean().backward()
        same(gradients(model), gradients(eager))


class TwoHeads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.a, self.b = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4), torch.nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.gelu(self.body(x))
        return self.a(x), self.b(x).exp()


def test_results_left_out() -> None:
    """Backwards of one head, of the other, of both: each a plan with graphs of its own."""
    flashover.reset()
    torch.manual_seed(0)
    model = TwoHeads().cuda()
    eager = copy.deepcopy(model)
    fast = flashover.compile(model, mode="reduce-overhead")
    before = _C._graph_replays()
    for i in range(15):
        x = torch.randn(8, 16, device="cuda")
        model.zero_grad(), eager.zero_grad()
        for m in (fast, eager):
            a, b = m(x)
            [a, b, a * b][i % 3].square().mean().backward()
        same(gradients(model), gradients(eager))
    assert _C._graph_replays() - before >= 20


def test_streams() -> None:
    model, fast, eager = pair()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for i in range(9):
        x = image()
        model.zero_grad(), eager.zero_grad()
        eager(x).square().mean().backward()
        stream = streams[i % 2] if i > 2 else torch.cuda.current_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            fast(x).square().mean().backward()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        same(gradients(model), gradients(eager))


def test_threads() -> None:
    """Two models at a time on one stream."""
    flashover.reset()
    torch.manual_seed(0)
    failures: list[BaseException] = []
    models = [Net().cuda() for _ in range(2)]
    twins = [copy.deepcopy(m) for m in models]
    compiled = [flashover.compile(m, mode="reduce-overhead") for m in models]

    images = [image() for _ in range(13)]  # (while a graph is recorded, no other thread may draw random numbers)

    def steps(n: int, some: list[torch.Tensor]) -> None:
        for x in some:
            models[n].zero_grad(), twins[n].zero_grad()
            compiled[n](x).square().mean().backward(), twins[n](x).square().mean().backward()
            same(gradients(models[n]), gradients(twins[n]))

    def work(n: int) -> None:
        try:
            steps(n, images[1:])
        except BaseException as e:
            failures.append(e)

    steps(0, images[:1]), steps(1, images[:1])
    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise failures[0]


def test_forgotten() -> None:
    """Graphs go with what they belong to; what they lent lives on."""
    model, fast, eager = pair()
    x = image()
    for i in range(3):
        loss = fast(x).square().mean()
        model.zero_grad()
        if i < 2:
            loss.backward()
    flashover.reset()
    del fast
    junk = [torch.full((1 << 20,), float("nan"), device="cuda") for _ in range(8)]
    loss.backward()
    del junk
    for _ in range(3):
        eager.zero_grad()
        expected = eager(x).square().mean()
    expected.backward()
    same(gradients(model), gradients(eager))


def test_parameters_that_move() -> None:
    model, fast, eager = pair()
    for i in range(8):
        x = image()
        if i == 4:
            for p in model.parameters():
                p.data = p.data.clone()
        model.zero_grad(), eager.zero_grad()
        fast(x).square().mean().backward(), eager(x).square().mean().backward()
        same(gradients(model), gradients(eager))


def rng() -> list[int]:
    return torch.cuda.get_rng_state().tolist()


def test_dropout() -> None:
    """The numbers are those of the mode without graphs, new ones at each step, and follow the seed."""
    plain_model, plain, _ = pair(0.5, None)
    graph_model, graph, _ = pair(0.5)
    x = image()
    losses: dict[str, list[float]] = {}
    states: dict[str, list[list[int]]] = {}
    grads: dict[str, list[torch.Tensor]] = {}
    before = _C._graph_replays()
    for name, model, call in (("plain", plain_model, plain), ("graph", graph_model, graph)):
        losses[name], states[name], grads[name] = [], [], []
        for i in range(8):
            if i in (0, 5):
                torch.manual_seed(7)
            model.zero_grad()
            loss = call(x).square().mean()
            loss.backward()
            losses[name].append(loss.item())
            states[name].append(rng())
            grads[name] += [g.clone() for g in gradients(model)]
    assert _C._graph_replays() - before >= 10
    assert states["plain"] == states["graph"]
    assert losses["graph"] == pytest.approx(losses["plain"], rel=1e-4)
    same(grads["graph"], grads["plain"])
    assert len({round(v, 7) for v in losses["graph"][:5]}) == 5
    assert losses["graph"][5:8] == pytest.approx(losses["graph"][:3], rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_dropout(dtype: torch.dtype) -> None:
    """Seeds that attention keeps for its backward."""
    flashover.reset()

    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q * 1.5, k, v, dropout_p=0.4)

    plain = flashover.compile(fn)
    graph = flashover.compile(fn, mode="reduce-overhead")
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 4, 64, 32, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    results: list[list[torch.Tensor]] = []
    for call in (plain, graph):
        torch.manual_seed(3)
        results.append([])
        for _ in range(6):
            out = call(q, k, v)
            results[-1] += [out.detach(), *torch.autograd.grad(out.float().square().sum(), (q, k, v))]
    same(results[1], results[0], 1e-3 if dtype == torch.float32 else 3e-2)


def test_random_inference() -> None:
    fn = flashover.compile(lambda x: F.dropout(x * 2, 0.5) + torch.rand_like(x), mode="reduce-overhead")
    want = flashover.compile(lambda x: F.dropout(x * 2, 0.5) + torch.rand_like(x))
    x = torch.ones(1000, device="cuda")
    with torch.no_grad():
        runs = []
        for f in (fn, want):
            torch.manual_seed(11)
            runs.append([f(x) for _ in range(5)])
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(runs[0][3], runs[0][4])


@pytest.mark.unsanitized
def test_what_cannot_be_recorded(capfd: pytest.CaptureFixture[str]) -> None:
    """An operator that waits for the device: said once; everything else goes on, random numbers too."""
    flashover.reset()
    fn = flashover.compile(lambda x: waits(x * 2).exp().sum(), mode="reduce-overhead")
    for i in range(4):
        x = torch.full((8,), 0.1 * i, device="cuda", requires_grad=True)
        loss = fn(x)
        loss.backward()
        torch.testing.assert_close(x.grad, 2 * (2 * x.detach()).exp())
    assert capfd.readouterr().err.count("no CUDA graph: recording failed") == 1
    assert not torch.equal(torch.rand(100, device="cuda"), torch.rand(100, device="cuda"))
    other = flashover.compile(lambda x: F.dropout(x, 0.5), mode="reduce-overhead")
    before = _C._graph_replays()
    with torch.no_grad():
        outs = [other(torch.ones(1000, device="cuda")) for _ in range(4)]
    assert _C._graph_replays() - before == 3
    assert not torch.equal(outs[2], outs[3])


def test_memory() -> None:
    """What is saved lies in the graph's memory once, not in a copy for the backward too."""
    peaks = []
    for mode in (None, "reduce-overhead"):
        flashover.reset()
        torch.manual_seed(0)
        layers = [layer for _ in range(8) for layer in (torch.nn.Linear(512, 512), torch.nn.GELU())]
        model = torch.nn.Sequential(*layers).cuda()
        fast = flashover.compile(model, mode=mode)
        x = torch.randn(16384, 512, device="cuda")
        for step in range(6):
            if step == 4:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            fast(x).mean().backward()
            model.zero_grad()
        peaks.append(torch.cuda.max_memory_allocated())
        del fast, model, x
    assert peaks[1] < 1.8 * peaks[0], f"{peaks[1] / 2**20:.0f} MiB with graphs, {peaks[0] / 2**20:.0f} without"
