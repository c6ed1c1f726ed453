"""What compiled code gives up of eager's numerics, or of a row's own: explain(...).numerics. Made by the pipeline
(graph/analysis/numerics.h); parts of calls that run eager have eager's bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

NOT_PROMISED = "none"
ROWS = "a row's bits in any batch"


@dataclass(frozen=True)
class GivenUp:
    """An operator of the program whose bits are not as promised; without a promise: not eager's."""

    operator: str
    where: str  # file:line, and the module
    reason: str
    count: int  # such operators at that line


@dataclass(frozen=True)
class Numerics:
    """promise: "eager's bits" (option strict_numerics), "a row's bits in any batch" (batch_invariant) or "none"."""

    promise: str
    kept: int  # operators whose bits are as promised
    given_up: list[GivenUp]

    @property
    def holds(self) -> bool:
        """Whether something is promised, and nothing was given up."""
        return self.promise != NOT_PROMISED and not self.given_up

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"holds": self.holds}

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, most: int = 1000, place: Callable[[str], str] = str) -> list[str]:
        """For people: what is promised, then what was given up; `place` shortens a file:line."""
        lost = sum(g.count for g in self.given_up)
        promised = "no bits are promised" if self.promise == NOT_PROMISED else f"promised: {self.promise}"
        lines = [f"{promised}; {self.kept} operators keep {_whose(self.promise)}, {lost} do not"]
        for g in self.given_up[:most]:
            times = f" ({g.count} times)" if g.count > 1 else ""
            where, within, module = g.where.partition(" in ")
            lines.append(f"  {g.operator}{times} at {place(where)}{within}{module}: {g.reason}")
        if len(self.given_up) > most:
            lines.append(f"  {len(self.given_up) - most} more: .numerics")
        return lines


def _whose(promise: str) -> str:
    return "eager's bits" if promise != ROWS else "them"


def numerics_of(texts: Iterable[str], eager: Iterable[dict[str, Any]]) -> Numerics | None:
    """Of the stage "numerics" of each graph, and of what ran eager; None where no graph has one."""
    promise, kept, given_up = "", 0, []
    for text in texts:
        first, *rest = text.splitlines()
        promise, count = first.split("\t")
        kept += int(count)
        for line in rest:
            operator, times, reason, where = line.split("\t")
            given_up.append(GivenUp(operator, where, reason, int(times)))
    if not promise:
        return None
    if promise == ROWS:  # torch's libraries choose by the number of rows
        given_up += [GivenUp("what ran eager", x["where"], x["reason"], x["count"]) for x in eager]
    return Numerics(promise, kept, given_up)
