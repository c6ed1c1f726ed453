"""What is said of sizes that change: the dimension, its values, the program's line and what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

import flashover


def asks(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] * 2 > 12:
        x = x + 1
    return x.sum(0)


def loops(x: torch.Tensor) -> torch.Tensor:
    for i in range(x.shape[0]):
        x = x + i
    return x


def adds(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def line(f: Callable[..., Any], text: str) -> str:
    lines, first = inspect.getsourcelines(f)
    [at] = [first + i for i, x in enumerate(lines) if text in x]
    return f"test_messages.py:{at}"


def last_missed(f: Callable[..., Any], *calls: tuple[torch.Tensor, ...], **how: Any) -> dict[str, Any]:
    fast = flashover.compile(f, **how)
    for args in calls:
        fast(*args)
    return max(fast.entries(), key=lambda e: e["version"])["missed"][0]


def rows(*counts: int) -> list[tuple[torch.Tensor]]:
    return [(torch.randn(n, 4),) for n in counts]


def test_a_size_that_becomes_a_symbol() -> None:
    m = last_missed(asks, *rows(5, 6))
    assert m["now"] == "size(0) is 6, not 5"
    assert m["advice"] == (
        "x.shape[0] is a symbol from now on; torch._dynamo.mark_dynamic(x, 0) makes it one in the first version"
    )


def test_a_question_of_the_program() -> None:
    m = last_missed(asks, *rows(5, 6, 7))
    assert m["guard"] == "2*x.shape[0] <= 12" and m["now"] == "2*x.shape[0] is 14"
    assert m["where"].endswith(line(asks, "if x.shape"))
    assert m["advice"].startswith("each answer there is a version of its own")


def test_a_size_taken_as_a_number() -> None:
    m = last_missed(loops, *rows(5, 6, 7))
    assert m["now"] == "size(0) is 7, not 6"
    assert line(loops, "range") in m["advice"] and "for i in range(x.shape[0]):" in m["advice"]
    assert m["advice"].startswith("x.shape[0] is taken as a number at ")


def test_sizes_that_are_equal() -> None:
    x = torch.randn
    m = last_missed(adds, (x(5), x(5)), (x(6), x(6)), (x(7), x(1)))
    assert m["guard"] == "y.shape[0] == x.shape[0]" and m["now"] == "y.shape[0] is 1, x.shape[0] is 7"
    assert m["where"].endswith(line(adds, "return"))


def test_dynamic_false() -> None:
    assert last_missed(asks, *rows(5, 6), dynamic=False)["advice"] == "dynamic=False compiles for each size"


def test_what_it_cost() -> None:
    fast = flashover.compile(asks)
    for args in rows(5, 6, 7):
        fast(*args)
    [entry] = [e for e in fast.entries() if e["version"] == 2]
    assert entry["seconds"] > 0 and "test_messages.py" in entry["called"]


def test_explain_lists_sizes() -> None:
    x, y = torch.randn(6, 4), torch.randn(6, 4)
    torch._dynamo.mark_dynamic(x, 0, min=3, max=10)

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y) if y.shape[1] % 2 == 0 else x

    e = flashover.explain(f, dynamic=True)(x, y)
    [graph] = e.graphs
    sizes = {s["size"]: s for s in graph["symbols"]}
    assert sizes["x.shape[0]"] | {"where": ""} == {
        "name": "s0", "size": "x.shape[0]", "equals": "", "value": None, "least": 3, "most": 10, "where": "",
        "marked": True,
    }  # fmt: skip
    assert sizes["y.shape[0]"]["equals"] == "x.shape[0]"
    assert any(g.endswith("% 2 == 0") for g in graph["guards"]), graph["guards"]
    text = e.text()
    assert "s0: x.shape[0], 3 to 10, marked" in text and "y.shape[0] is x.shape[0]" in text
    assert "return (x + y) if" in text


def test_explain_tells_which_version_serves_which_sizes() -> None:
    calls = flashover.explain(asks)
    for args in rows(5, 6, 7):
        text = calls(*args).text()
    second = text[text.index("sizes that version 1 serves") : text.index("sizes that version 2 serves")]
    assert "s0: x.shape[0]" in second and "where 2*x.shape[0] <= 12" in second and "used 1 time" in second
    assert "where 12 < 2*x.shape[0]" in text[text.index("sizes that version 2 serves") :]


def test_explain_names_what_takes_a_size_as_a_number() -> None:
    text = flashover.explain(loops, dynamic=True)(torch.randn(6, 4)).text()
    assert "x.shape[0] is 6: the program takes it as a number" in text
    assert f"{line(loops, 'range')}: for i in range(x.shape[0]):" in text


def test_what_is_foreseen_is_no_internal_error() -> None:
    """Sequences of 16-bit numbers are packed by lengths that are data."""
    packed = torch.nn.utils.rnn.pack_padded_sequence
    report = flashover.explain(lambda x, n: packed(x, n, batch_first=True).data)(
        torch.randn(3, 7, 4, dtype=torch.bfloat16), torch.tensor([7, 5, 2])
    )
    reasons = [b["reason"] for b in report.breaks]
    assert reasons and not any("internal error" in r for r in reasons), reasons
