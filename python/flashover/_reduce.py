"""The smallest part of a captured graph that still shows a fault."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import fx

from flashover import _repro

FEW = 10  # operators that a script should have at most
_SIZES = (1, 2, 4, 7, FEW, 20, 40, 80, 160, 320)
Shows = Callable[[fx.GraphModule, list[Any]], bool]
Part = tuple[fx.GraphModule, list[Any]]


def first_operator(module: fx.GraphModule, known: dict[fx.Node, Any], shows: Shows) -> fx.Node:
    """The first one that shows it, of a graph that is known to. known: eager's values. Halves are tried, with what they
    read as inputs; where it takes operators of both, more and more of them from the first one on."""
    region = _repro.operators(module)

    def shown_by(nodes: list[fx.Node]) -> bool:
        return shows(*_repro.part_of(module, nodes, _repro.last_of(nodes), known))

    while len(region) > 1:
        middle = len(region) // 2
        half = next((h for h in (region[:middle], region[middle:]) if shown_by(h)), None)
        if half is None:
            break
        region = half
    low, high = 1, len(region)
    while low < high:
        middle = (low + high) // 2
        if shown_by(region[:middle]):
            high = middle
        else:
            low = middle + 1
    return region[high - 1]


def smallest_part(
    module: fx.GraphModule, node: fx.Node, known: dict[fx.Node, Any], shows: Shows, deadline: float
) -> Part | None:
    """The part that ends in `node`, or, where the fault takes what comes later (it is a matter of what is fused), one
    around it: what it reads is an input, with eager's value. None: no such part shows it."""

    def ending_there(inside: list[fx.Node]) -> Part:
        return _repro.part_of(module, inside, [node], known)

    def whole(inside: list[fx.Node]) -> Part:
        return _repro.part_of(module, inside, _repro.last_of(inside), known)

    order, nodes = _repro.before(module, node), _repro.operators(module)
    at = nodes.index(node)
    for size in (*(s for s in _SIZES if s < len(nodes)), len(nodes)):
        for inside, part in (
            (order[-size:], ending_there),
            (nodes[max(0, at - size // 2) : at + size // 2 + 1], whole),
        ):
            if shows(*part(inside)):
                return part(_without_needless(inside, node, part, shows, deadline))
        if time.monotonic() > deadline:
            break
    return None


def _without_needless(
    inside: list[fx.Node], node: fx.Node, part: Callable[[list[fx.Node]], Part], shows: Shows, deadline: float
) -> list[fx.Node]:
    """Leaves operators out, many at once and then one by one, as long as the fault stays."""
    at_once = len(inside) // 2
    while at_once and time.monotonic() < deadline:
        start, dropped = 0, False
        while start < len(inside) and time.monotonic() < deadline:
            fewer = [*inside[:start], *inside[start + at_once :]]
            if node in fewer and shows(*part(fewer)):
                inside, dropped = fewer, True
            else:
                start += at_once
        at_once = at_once if dropped and at_once == 1 else at_once // 2
    return inside
