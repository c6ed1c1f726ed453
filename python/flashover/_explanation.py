"""What became of calls: one object for people (str), programs (to_dict), notebooks and browsers (to_html)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flashover._explain_text import TEXTS, everything, parts_of_label
from flashover._nearest import did_you_mean
from flashover._numerics import Numerics, numerics_of
from flashover._stacks import of_user
from flashover._summary import summary, summary_html


class Explanation:
    """What compiling gave: str() is a summary for people; by name there is the rest: .breaks, .recompiles, .kernels,
    .externs, .eager, .guards, .plan, .numerics, .text() and .text("stage"), .to_dict(), .to_html(),
    .save("page.html")."""

    def __init__(self, name: str, entries: list[dict[str, Any]], tallies: dict[str, Any]) -> None:
        self.name = name
        self.entries = sorted(entries, key=lambda e: e["serial"])
        self.tallies = tallies
        self.bandwidth: dict[str, float] = {}  # by device, bytes a second, where it was measured
        self.call_seconds: float | None = None  # of a compiled call, the least seen, where it was measured
        self.eager_seconds: float | None = None  # of the same call as the program is written
        for e in self.entries:
            e["stack"] = "\n".join(of_user(e["stack"]))
            for s in e["steps"]:
                operators, s["lines"], s["module"] = parts_of_label(s["label"])
                fused = s["operators"].split("+") if s["operators"] else operators
                s["operators"] = fused if s["kind"] == "kernel" else [s["name"]]
                s["source"] = e["kernel_sources"].get(s["symbol"], "")

    def add_bandwidth(self, device: str, bytes_per_second: float) -> None:
        """What measured times are held against."""
        self.bandwidth[device] = bytes_per_second
        for e in self.entries:
            for s in e["steps"]:
                if e["device"] != device or s["seconds"] <= 0:
                    continue
                s["bandwidth"] = (s["bytes_read"] + s["bytes_written"]) / s["seconds"]
                s["share"] = s["bandwidth"] / bytes_per_second

    @property
    def graphs(self) -> list[dict[str, Any]]:
        return [e for e in self.entries if e["compiled"]]

    @property
    def breaks(self) -> list[dict[str, Any]]:
        """Where a graph ends in the middle of the program and another one goes on; `count`: calls that came there;
        `seconds`: what compiling took of what comes after it, up to the next break."""
        found: list[dict[str, Any]] = []
        for e in self.entries:
            if found and e["continues"]:
                found[-1]["seconds"] += e["seconds"]
            if e["breaks"]:
                found.append({k: e[k] for k in ("reason", "where", "stack")} | {"count": e["hits"], "seconds": 0.0})
        return found

    @property
    def declines(self) -> list[dict[str, str]]:
        """Calls, or what was left of them after a break, that cannot be compiled."""
        return [
            {k: e[k] for k in ("reason", "where", "stack", "stays")}
            for e in self.entries
            if not e["compiled"] and not e["trivial"]
        ]

    @property
    def recompiles(self) -> list[dict[str, Any]]:
        """What was compiled again, oldest first: for each version there was the guard that failed (what was so, what is
        found now, the program's line that made it a guard), the line of the call, and what it cost."""
        keys = ("version", "missed", "called", "continues", "seconds", "stages")
        made = sorted((e for e in self.entries if e["missed"]), key=lambda e: e["serial"])
        return [{"reason": e["recompiled_for"]} | {k: e[k] for k in keys} for e in made]

    @property
    def kernels(self) -> list[dict[str, Any]]:
        """Every kernel that a call launches, in order."""
        return [s for e in self.graphs for s in e["steps"] if s["kind"] == "kernel" and not s["frozen"]]

    @property
    def externs(self) -> list[dict[str, Any]]:
        """Every operator that a call leaves to torch, in order."""
        return [s for e in self.graphs for s in e["steps"] if s["kind"] == "extern" and not s["frozen"]]

    @property
    def eager(self) -> list[dict[str, Any]]:
        """What ran eager in that call, and why: whole calls, and parts of them (`frame`)."""
        return self.tallies["eager"]

    @property
    def guards(self) -> list[str]:
        """What has to hold for compiled code to run, in words."""
        return [g for e in self.entries for g in e["guards"]]

    @property
    def numerics(self) -> Numerics | None:
        """Which operators have eager's bits (with the option batch_invariant: a row's own in any batch), and what was
        given up, by operator and line. None where the stages' texts were not kept (option keep_text)."""
        eager = [*self.eager, *({**d, "count": 1} for d in self.declines)]
        return numerics_of((e["texts"]["numerics"] for e in self.graphs if "numerics" in e["texts"]), eager)

    @property
    def plan(self) -> str:
        """What runs in which order in which memory."""
        return self.text("plan")

    def stages(self) -> list[str]:
        """The names that text() takes."""
        there = {t for e in self.graphs for t in e["texts"]}
        return ["guards", "kernels", *(t for t in TEXTS if t in there), *sorted(there - set(TEXTS))]

    def text(self, stage: str | None = None) -> str:
        """All there is as text, or one stage of every graph: "guards", "kernels" (their source), "traced", "loops",
        "plan" (forward and backward), or a pass by its name: see stages()."""
        if stage is None:
            return "\n".join(everything(self))
        known = self.stages()
        wanted = [t for t in known if t == stage or t in (f"{stage}_forward", f"{stage}_backward")]
        if not wanted and stage not in TEXTS:
            raise ValueError(f"no stage {stage!r}; {did_you_mean(stage, known)}: {', '.join(known)}")
        parts = []
        for i, e in enumerate(self.graphs):
            for name in wanted:
                if body := _stage_of(e, name):
                    parts.append(f"# graph {i}, {name}\n{body}")
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "graph_count": len(self.graphs),
            "graph_break_count": len(self.breaks) + len(self.declines),
            "op_count": sum(e["ops"] for e in self.graphs),
            "kernel_count": sum(e["kernels"] for e in self.graphs),
            "extern_call_count": sum(e["extern_calls"] for e in self.graphs),
            "graphs": self.graphs,
            "breaks": self.breaks,
            "declines": self.declines,
            "recompiles": self.recompiles,
            "guards": self.guards,
            "skipped": self.tallies["skipped"],
            "eager": self.eager,
            "eager_call_count": self.tallies["eager_calls"],
            "eager_frame_count": self.tallies["eager_frames"],
            "numerics": None if (found := self.numerics) is None else found.to_dict(),
            "bandwidth": self.bandwidth,
            "call_seconds": self.call_seconds,
            "eager_seconds": self.eager_seconds,
        }

    def to_html(self) -> str:
        """One page that needs nothing beside itself."""
        from flashover._explain_html import page  # most programs never look at one

        return page(self)

    def save(self, path: str | Path) -> None:
        """Writes to_html() to a file."""
        Path(path).write_text(self.to_html(), encoding="utf-8")

    def __str__(self) -> str:
        return "\n".join(summary(self))

    def __repr__(self) -> str:
        """One line, for prompts, debuggers and lists."""
        d = self.to_dict()
        counts = (
            f"{d['graph_count']} graphs, {len(self.breaks)} breaks, {len(self.declines)} eager, "
            f"{d['kernel_count']} kernels, {d['extern_call_count']} extern calls"
        )
        return f"<flashover.Explanation of {self.name}: {counts}; print() it, or .save('page.html')>"

    def _repr_html_(self) -> str:
        return summary_html(self)


def _stage_of(entry: dict[str, Any], name: str) -> str:
    if name == "guards":
        return "\n".join(entry["guards"])
    if name == "kernels":
        return "\n\n".join(entry["kernel_sources"].values())
    return entry["texts"].get(name, "")
