"""explain() and what a profiler sees."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import flashover


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(64), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.linear(self.norm(x)))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for b in self.blocks:
            x = b(x)
        return x * 2


class Page(html.parser.HTMLParser):
    """Tags, attributes and what is written between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_steps_say_what_where_and_how_much() -> None:
    model, x = Net().eval(), torch.randn(8, 64)
    with torch.no_grad():
        e = flashover.explain(model)(x)
    line = Block.forward.__code__.co_firstlineno + 1
    assert len(e.kernels) == e.to_dict()["kernel_count"] == 3
    assert len(e.externs) == e.to_dict()["extern_call_count"] == 2
    first, last = e.kernels[0], e.kernels[-1]
    # The user's line and module, not torch's.
    assert first["lines"] == [f"{__file__}:{line}"] and first["module"] == "self.blocks.0.norm"
    assert f"{__file__}:{line + 8 - 1}" not in last["lines"] and last["operators"]
    assert first["bytes_read"] == 4 * (8 * 64 + 2 * 64) and first["bytes_written"] == 4 * 8 * 64
    assert e.externs[0]["bytes_read"] == 4 * (8 * 64 + 64 * 64 + 64)
    assert all(s["symbol"] in s["source"] for s in e.kernels)
    assert all(s["seconds"] < 0 and "share" not in s for s in e.kernels)
    assert "kernel" in e.text() and "self.blocks.0.norm" in e.text()


def test_bytes_of_sizes_that_are_symbols_are_those_of_the_call():
    e = flashover.explain(lambda x: torch.relu(x) @ x.T, dynamic=True)(torch.randn(100, 64))
    assert e.externs[0]["writes"][0][1] == "f32[s0,s0]" and e.externs[0]["bytes_written"] == 4 * 100 * 100
    assert e.kernels[0]["bytes_read"] == 4 * 100 * 64


def test_measured() -> None:
    model, x = Net().eval(), torch.randn(256, 64)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        e = flashover.explain(model, measure=True)(x)
    assert all(s["seconds"] > 0 and s["share"] > 0 for s in e.kernels + e.externs)
    (rate,) = e.bandwidth.values()
    s = e.kernels[0]
    assert s["share"] == pytest.approx((s["bytes_read"] + s["bytes_written"]) / s["seconds"] / rate)
    assert "GB/s measured" in e.text() and "us in all" in e.text()
    assert len(calls) > 3  # it says so


def test_training_is_measured_without_touching_gradients() -> None:
    model, x = Net(), torch.randn(32, 64)
    e = flashover.explain(model, measure=True)(x)
    (g,) = e.graphs
    assert g["training"]
    for side in ("forward", "backward"):
        steps = [s for s in g["steps"] if s["side"] == side]
        assert steps and all(s["seconds"] > 0 for s in steps)
    # Kernels of the backward are of the lines that made them.
    kernels = [s for s in g["steps"] if s["side"] == "backward" and s["kind"] == "kernel"]
    assert {s["module"] for s in kernels} & {
        "self.blocks.0",
        "self.blocks.1",
        "self.blocks.0.norm",
        "self.blocks.1.norm",
    }
    assert all(p.grad is None for p in model.parameters())


def leaf(x: torch.Tensor) -> torch.Tensor:
    print("a break")
    return x + 1


def test_a_break_has_reason_and_stack(capsys: pytest.CaptureFixture[str]) -> None:
    def middle(x: torch.Tensor) -> torch.Tensor:
        return leaf(x * 2) * 3

    e = flashover.explain(middle)(torch.randn(4))
    assert len(e.graphs) == 3 and len(e.breaks) == 1  # before it, the rest of leaf, the rest of middle
    (b,) = e.breaks
    frames = b["stack"].splitlines()
    assert frames[-1] == f"{__file__}:{leaf.__code__.co_firstlineno + 1} in leaf" and b["where"] in frames[-1]
    assert frames[-2].endswith("in test_a_break_has_reason_and_stack.<locals>.middle")
    assert any("test_a_break_has_reason_and_stack" in f for f in frames[:-2])
    assert frames[-1] in e.text() and "leaf" in e.to_html()
    assert not e.graphs[0]["continues"] and e.graphs[1]["continues"] and e.graphs[2]["continues"]


def test_recompiles_have_a_reason_and_a_cost() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    run = flashover.explain(f)
    run(torch.randn(4))
    e = run(torch.randn(5))
    (r,) = e.recompiles
    assert "tensor" in r["reason"] and r["seconds"] > 0
    assert "compiled again (" in e.text()


class Moody(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.scale, self.names = 2.0, {"a": 1}

    def forward(self, x: torch.Tensor, k: object = None) -> torch.Tensor:
        y = self.linear(x) * self.scale
        if k is None:
            return y
        return y + len(self.names)


def line_of(text: str) -> str:
    """file:line of the line of this file with that text."""
    source = Path(__file__).read_text().splitlines()
    return f"{__file__}:{next(i for i, line in enumerate(source, 1) if line.strip().startswith(text))}"


FORWARD, LINEAR = "def forward(self, x: torch.Tensor, k", "y = self.linear(x) * self.scale"
RECOMPILES: list[tuple[Callable[[Any], Any], str, str, str]] = [  # change, guard, what is found now, line that asked
    (lambda m: m(torch.randn(3, 4)), "x is a tensor Float[2,4]", "size(0) is 3, not 2", FORWARD),
    (
        lambda m: m(torch.randn(2, 4).t().contiguous().t()),
        "x is a tensor",
        "stride(0) is 1, not 4, stride(1) is 2, not 1",
        "",
    ),
    (lambda m: m(torch.randn(2, 4, requires_grad=True)), "x is a tensor", "requires_grad is True, not False", ""),
    (lambda m: m.double()(torch.randn(2, 4).double()), "x is a tensor", "dtype is Double, not Float", ""),
    (
        lambda m: m(torch.nn.Parameter(torch.randn(2, 4), False)),
        "x is a tensor",
        "its class is Parameter, not Tensor",
        "",
    ),
    (lambda m: m(torch.randn(4)), "x is a tensor", "dim() is 1, not 2", ""),
    (lambda m: m(torch.randn(2, 4), 1), "len(args) == 1", "2", FORWARD),
    (lambda m: setattr(m, "scale", 3.0) or m(torch.randn(2, 4)), "self.scale == 2.0", "3.0", LINEAR),
    (lambda m: setattr(m.linear, "bias", None) or m(torch.randn(2, 4)), "self.linear.bias is a tensor", "None", LINEAR),
    (lambda m: torch.no_grad()(m)(torch.randn(2, 4)), "grad mode is on", "off", ""),
]


@pytest.mark.parametrize("case", range(len(RECOMPILES)))
def test_a_recompile_says_which_guard_failed(case: int) -> None:
    change, guard, now, where = RECOMPILES[case]
    model = Moody()
    fast = flashover.compile(model, backend="eager")
    inner = fast._flashover_callable
    fast(torch.randn(2, 4))
    change(fast)
    first, second = sorted(inner.entries(), key=lambda e: e["serial"])
    assert not first["missed"] and first["version"] == 0 and second["version"] == 1
    (m,) = second["missed"]
    assert (m["version"], m["hits"]) == (0, 1)
    assert m["guard"].startswith(guard) and m["now"] == now, m
    if where:
        assert m["where"] == line_of(where), m
    # Where the call was, and the same in one line.
    assert second["called"].startswith(__file__)
    assert second["recompiled_for"].startswith(guard) and second["recompiled_for"].endswith("; now " + now)
    assert inner.tallies()["recompile_seconds"] >= second["seconds"] > 0


def test_every_version_says_why_it_would_not_do(capfd: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor, k: int) -> torch.Tensor:
        if k > 2:
            x = x + 1
        return x * len("abc"[:k])

    run = flashover.explain(f, backend="eager", dynamic=False)
    flashover.set_logs("recompiles")
    try:
        run(torch.randn(4), 1)
        run(torch.randn(5), 1)
        e = run(torch.randn(4, 2), 3)
    finally:
        flashover.set_logs("")
    again = e.recompiles
    assert [r["version"] for r in again] == [1, 2] and all(r["seconds"] > 0 and "capture" in r["stages"] for r in again)
    assert [m["version"] for m in again[1]["missed"]] == [1, 0]  # the one used last comes first
    text, err = e.text(), capfd.readouterr().err
    for shown in (text, err):
        assert "not version 1 (used 1 time): x is a tensor Float[5]" in shown and "; now dim() is 2, not 1" in shown
        assert "for the call at " in shown and "e = run(torch.randn(4, 2), 3)" in shown
        assert f"seen at {line_of('def f(x: torch.Tensor, k: int)')}: def f(x: torch.Tensor, k: int)" in shown
    assert "version 2 took " in err and "recompiles so far: 2, " in err
    assert "not version 1" in e.to_html()


HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x00"


def test_the_page_stands_alone_and_escapes(tmp_path: Path) -> None:
    module = Net().eval()
    module.add_module("<b onload='x'>", torch.nn.Linear(64, 64))
    scope: dict[str, Any] = {"torch": torch}
    name = "/tmp/<svg onload=alert(1)>&\"'.py"
    program = (
        f"def f(m, d, x):\n    d[{HOSTILE!r}]\n    print\n"
        f"    return m._modules[\"<b onload='x'>\"](m(x)) + d[{HOSTILE!r}]\n"
    )
    exec(compile(program, name, "exec"), scope)
    with torch.no_grad():
        e = flashover.explain(scope["f"], measure=True)(module, {HOSTILE: torch.randn(64)}, torch.randn(4, 64))
    e.name = HOSTILE
    page = e.to_html()
    parsed = Page(page)
    assert parsed.open == []  # closed in order
    assert {t for t, _ in parsed.tags} <= {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "div", "b", "br", "span", "table",
        "tbody", "tr", "th", "td", "details", "summary", "pre", "code", "a", "input", "svg", "path", "circle", "text",
        "tspan", "script",
    }  # fmt: skip
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)  # the page's own, which its policy names
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page and "<script" not in page.replace("<script>", "", 1)
    assert sum(t == "svg" for t, _ in parsed.tags) == len(e.graphs)
    assert not any(k.startswith("on") or k == "src" for _, a in parsed.tags for k in a)
    assert all(a["href"].startswith("#") for _, a in parsed.tags if "href" in a)
    assert "http" not in re.sub(r'http-equiv="Content-Security-Policy"', "", page.split("</style>")[0])
    words = "".join(parsed.words)
    assert "<img src=x onerror=alert(1)>" in words and "<svg onload=alert(1)>" in words  # shown as they are
    assert "\x00" not in page
    e.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page


def events(run: Any) -> list[Any]:
    with profile(activities=[ProfilerActivity.CPU]) as p:
        run()
    return list(p.events())


def test_a_profiler_sees_kernels_by_name_within_modules() -> None:
    model, x = Net().eval(), torch.randn(8, 64)
    fast = flashover.compile(model)
    with torch.no_grad():
        expected = fast(x)
        seen = events(lambda: torch.testing.assert_close(fast(x), expected))
        steps = flashover.explain(model)(x).kernels
    names = [s.name for s in seen]
    for s in steps:
        assert names.count(s["name"]) == 1
    assert names.count("flashover: Net") == 1
    assert {"self.blocks.0", "self.blocks.0.norm", "self.blocks.1.linear"} <= set(names)
    # Nested: a kernel lies within its module, that within its parent.
    kernel = next(e for e in seen if e.name == steps[0]["name"])
    chain = []
    while kernel.cpu_parent is not None:
        kernel = kernel.cpu_parent
        chain.append(kernel.name)
    assert chain[:4] == ["self.blocks.0.norm", "self.blocks.0", "self.blocks", "self"] and "flashover: Net" in chain


def test_a_profiler_sees_the_backward_too() -> None:
    model, x = Net(), torch.randn(8, 64)
    fast = flashover.compile(model)
    fast(x).sum().backward()
    names = {e.name for e in events(lambda: fast(x).sum().backward())}
    kernels = [s for s in flashover.explain(model)(x).kernels if s["side"] == "backward"]
    assert kernels and {s["name"] for s in kernels} <= names


def test_ranges_are_closed_when_a_kernel_fails() -> None:
    def f(table: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return table[i] + 1

    fast, table = flashover.compile(f), torch.randn(4, 3)
    fast(table, torch.tensor([0, 1]))

    def run() -> None:
        with pytest.raises(IndexError):
            fast(table, torch.tensor([0, 9]))
        torch.zeros(3).sin()

    sin = next(e for e in events(run) if e.name == "aten::sin")
    assert sin.cpu_parent is None


SEEN = [1, 2]


def test_globals_go_by_their_names():
    def f(x):
        return x + len(SEEN)

    fast = flashover.compile(f, backend="eager")
    fast(torch.ones(2))
    SEEN.append(3)
    try:
        fast(torch.ones(2))
    finally:
        SEEN.pop()
    assert fast.entries()[0]["recompiled_for"].startswith(f"len({__name__}.SEEN) == 2, guarded at ")
