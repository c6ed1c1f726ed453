"""What people see first of an explanation, of a compiled callable and of a call that is lowered."""

from __future__ import annotations

import pytest
import torch

import flashover
from flashover import exc


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(64), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.gelu(self.linear(self.norm(x)))


def branches(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    for _ in range(3):
        if y.sum() > 1e9:
            y = y + 1
        print(end="")
        y = y.sin()
    return y


X = torch.randn(8, 64)


def test_a_whole_graph_on_one_screen() -> None:
    with torch.no_grad():
        e = flashover.explain(Block().eval())(X)
    lines = str(e).splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 118
    assert lines[0] == "Block is 1 graph: 2 kernels and 1 call of libraries; nothing runs eager."
    assert any("kernel layer_norm" in line and "self.norm" in line for line in lines)
    assert any("kernel gelu+add" in line for line in lines)
    parts = next(line for line in lines if line.startswith("of a call's bytes moved: "))
    kernels, libraries = (int(p.split()[-1].rstrip("%")) for p in parts.rpartition(": ")[2].split(", "))
    assert kernels + libraries in (99, 100, 101) and kernels > 0 < libraries
    assert any(line.startswith("compile time ") for line in lines)


def test_measured_calls_are_held_against_eager() -> None:
    with torch.no_grad():
        e = flashover.explain(Block().eval(), measure=True)(X)
    assert e.call_seconds and e.eager_seconds
    ratio = e.eager_seconds / e.call_seconds
    assert f"{ratio:.2f}x eager's speed" in str(e) and "steps by time" in str(e)
    assert e.to_dict()["call_seconds"] == e.call_seconds
    assert e.tallies["calls"] == 1  # of the one call that was explained


def test_breaks_are_grouped_by_line() -> None:
    e = flashover.explain(branches, backend="eager")(X)
    first = branches.__code__.co_firstlineno
    text = str(e)
    assert len(text.splitlines()) <= 40
    assert text.splitlines()[0].startswith(
        f"branches is cut into {len(e.graphs)} graphs by {len(e.breaks)} graph breaks"
    )
    assert "graph breaks on 3 lines" in text and len(e.breaks) == 4  # the loop's iterator, too
    assert text.count(f":{first + 3}: if y.sum() > 1e9:") == 1 and text.count(f':{first + 5}: print(end="")') == 1
    assert text.count("    3 times, ") == 3 and "torch.where" in text
    assert sum(b["seconds"] for b in e.breaks) == pytest.approx(sum(g["seconds"] for g in e.entries if g["continues"]))
    assert all("flashover/_explain" not in frame for b in e.breaks for frame in b["stack"].splitlines())


def test_what_runs_eager_is_the_verdict() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with flashover.set_stance("force_eager"):
        e = flashover.explain(f)(X)
    assert str(e).splitlines()[0].startswith("f runs eager: the stance is force_eager")


def test_the_longest_summary_has_forty_lines() -> None:
    """Many lines of each kind."""
    source = "\n".join(
        ["def f(x, k):", *(f"    x = x * {i} + k\n    print(end='')" for i in range(20)), "    return x"]
    )
    scope: dict[str, object] = {}
    exec(compile(source, "many.py", "exec"), scope)
    run = flashover.explain(scope["f"])  # type: ignore[arg-type]
    e = None
    for shape, k in (((4,), 1), ((5, 2), 2), ((3, 3, 3), 3.0)):
        e = run(torch.ones(shape), k)
    assert e is not None and e.recompiles and len(e.breaks) > 20
    assert len(str(e).splitlines()) <= 40 and "more lines: .breaks" in str(e) and "compiled again" in str(e)


def test_the_rest_goes_by_name() -> None:
    e = flashover.explain(Block())(X)
    assert e.guards == e.to_dict()["guards"]
    assert "plan_forward" in e.plan and "plan_backward" in e.plan and e.plan == e.text("plan")
    assert "aten.addmm" in e.text("traced") and e.kernels[0]["symbol"] in e.text("kernels")
    assert e.text("loops").count("# graph 0, loops_") == 2
    assert e.text().splitlines()[0].startswith("Block: 1 graph(s)")
    with pytest.raises(ValueError, match="no stage 'trased'; did you mean 'traced'"):
        e.text("trased")


def test_a_notebook_shows_a_table() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    e = flashover.explain(f)(X)
    e.name = "<f>"
    page = e._repr_html_()
    assert "<table>" in page and "&lt;f&gt; is 1 graph" in page and "<f>" not in page and "sin+add" in page


def test_a_callable_tells_what_it_holds() -> None:
    @flashover.compile(options={"keep_text": True})
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    assert repr(f).endswith("f: not called yet>") and f.versions == []
    for n in (4, 4, 5, 6):
        f(torch.ones(n))
    stats = f.stats()
    assert (stats.calls, stats.versions, stats.recompiles, stats.graph_breaks) == (4, 2, 1, 0)
    first, second = f.versions
    assert (first.hits, first.number, first.because, first.sizes) == (2, 0, "", [])
    assert (second.hits, second.number, second.sizes) == (2, 1, ["x.shape[0]"]) and "x is a tensor" in second.because
    assert "f: 4 calls, 2 versions; .explain()" in repr(f)
    assert f.explain().recompiles[0]["version"] == 1 and "2 versions" in str(f.explain()).splitlines()[0]
    assert f.source().count(f.explain().kernels[0]["symbol"])


def test_sources_that_were_not_kept_are_no_empty_text() -> None:
    @flashover.compile
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    f(X)
    with pytest.raises(exc.UserError, match="keep_text"):
        f.source()


def test_a_modules_own_attributes_are_not_hidden() -> None:
    model = Block().eval()
    model.stats = "mine"  # type: ignore[assignment]
    fast = flashover.compile(model)
    fast(X)
    assert fast.stats == "mine" and not hasattr(fast, "explain") and not hasattr(fast, "source")
    assert flashover.live(fast).stats().calls == 1 and flashover.live(fast).explain().name == "Block"
    assert repr(flashover.live(fast)).startswith("<flashover compiled Block: 1 call")
    with pytest.raises(TypeError, match=r"flashover\.live needs"):
        flashover.live(model)


def test_a_functions_own_attributes_are_not_hidden() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x

    f.versions = "mine"  # type: ignore[attr-defined]
    assert flashover.compile(f).versions == "mine"


def test_lower_compiles_and_does_not_run() -> None:
    ran = []
    model = Block()
    model.register_forward_hook(lambda *_: ran.append(1))
    x = torch.randn(8, 64)
    with torch.no_grad():
        lowered = flashover.lower(Block().eval(), x)
        fast = lowered.compile()
        assert flashover.live(fast).stats().calls == 0 and flashover.live(fast).stats().graphs == 1
        fast(x)
        assert flashover.live(fast).stats().graphs == 1  # the code that was there
    cost = lowered.cost_analysis()
    products = 2 * 8 * 64 * 64
    assert cost.flops and products < cost.flops < products * 1.2
    assert cost.bytes_accessed == sum(
        s["bytes_read"] + s["bytes_written"] for s in lowered.explanation.graphs[0]["steps"]
    )
    assert cost.bound_by in ("memory", "compute") and cost.seconds > 0
    assert "aten.addmm" in lowered.as_text() and "kernel" in lowered.as_text("plan")


def test_lower_writes_nothing() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * torch.rand(4)

    x, state = torch.zeros(4), torch.random.get_rng_state()
    lowered = flashover.lower(f, x)
    assert torch.equal(x, torch.zeros(4)) and torch.equal(state, torch.random.get_rng_state())
    lowered.compile()(x)
    assert torch.equal(x, torch.ones(4))


def test_lower_wants_one_graph() -> None:
    with pytest.raises(exc.Unsupported, match=r"if y\.sum") as caught:
        flashover.lower(branches, X)
    assert caught.value.title == "Python needs the value of a tensor"
    with pytest.raises(TypeError):
        flashover.lower(branches)  # type: ignore[call-arg]
