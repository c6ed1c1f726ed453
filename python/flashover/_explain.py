"""explain(): what happens to a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flashover._compile import CompiledModule, Settings, compile_anything


class Explanation:
    """What compiling one call gave: str() for people, to_dict() for programs."""

    def __init__(self, name: str, entries: list[dict[str, Any]], tallies: dict[str, Any]) -> None:
        self.name = name
        self.entries = entries
        self.tallies = tallies

    @property
    def graphs(self) -> list[dict[str, Any]]:
        return [e for e in self.entries if e["compiled"]]

    @property
    def breaks(self) -> list[dict[str, str]]:
        """Where a graph ends in the middle of the program and another one goes on."""
        return [{"reason": e["reason"], "where": e["where"]} for e in self.entries if e["breaks"]]

    @property
    def declines(self) -> list[dict[str, str]]:
        """Calls, or what was left of them after a break, that run eager."""
        return [
            {"reason": e["reason"], "where": e["where"], "stays": e["stays"]}
            for e in self.entries
            if not e["compiled"] and not e["trivial"]
        ]

    def to_dict(self) -> dict[str, Any]:
        skipped = self.tallies["skipped"]
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
            "guards": [g for e in self.entries for g in e["guards"]],
            "skipped": skipped,
        }

    def __str__(self) -> str:
        d = self.to_dict()
        lines = [
            f"{self.name}: {d['graph_count']} graph(s), {len(self.breaks)} graph break(s), "
            f"{len(self.declines)} call(s) left eager, "
            f"{d['op_count']} ops, {d['kernel_count']} kernels, {d['extern_call_count']} extern calls"
        ]
        if d["skipped"]:
            lines.append(f"  not tried: {d['skipped']}")
        for x in self.declines:
            lines.append(f"  eager: {x['reason']}" + (f"\n    at {x['where']}" if x["where"] else ""))
            if x["stays"]:
                lines.append(f"    cannot go on after it: {x['stays']}")
        for x in self.breaks:
            lines.append(f"  graph break: {x['reason']}" + (f"\n    at {x['where']}" if x["where"] else ""))
        for i, e in enumerate(self.graphs):
            times = ", ".join(f"{k} {v * 1e3:.1f} ms" for k, v in e["stages"].items())
            cache = ", from the disk cache" if e["cache_hit"] else ""
            after = f" from {e['continues']}" if e["continues"] else ""
            lines.append(f"  graph {i}{after}: {e['ops']} ops, {e['seconds'] * 1e3:.1f} ms{cache} ({times})")
            if e["training"]:
                forward = e["kernels"] - e["backward_kernels"]
                lines.append(
                    f"    forward {forward} kernels, backward {e['backward_kernels']} kernels, "
                    f"{e['saved_bytes']} bytes kept for the backward"
                )
            if e["recompiled_for"]:
                lines.append(f"    compiled again because: {e['recompiled_for']}")
            lines.append(f"    {len(e['guards'])} guards in {e['guard_instructions']} instructions")
            lines += [f"      {g}" for g in e["guards"]]
            for title in (
                "traced",
                "forward",
                "backward",
                "loops",
                "loops_forward",
                "loops_backward",
                "plan",
                "plan_forward",
                "plan_backward",
            ):
                if title in e["texts"]:
                    lines.append(f"    {title}:")
                    lines += [f"      {line}" for line in e["texts"][title].splitlines()]
        return "\n".join(lines)

    __repr__ = __str__


def explain(target: Callable[..., Any], **compile_arguments: Any) -> Callable[..., Explanation]:
    """explain(model)(*args): compiles and runs that call once, apart from what is compiled already."""
    if isinstance(target, CompiledModule):
        settings = type(target)._flashover_settings
    else:
        settings = getattr(target, "_flashover_settings", None)
    if compile_arguments or settings is None:
        full = {"backend": "flashover", "fullgraph": False, "dynamic": None, "mode": None, "options": None}
        unknown = set(compile_arguments) - set(full)
        if unknown:
            raise TypeError(f"explain() got unknown arguments: {', '.join(sorted(unknown))}")
        settings = Settings.checked(**{**full, **compile_arguments})
    compiled = compile_anything(target, settings, keep_text=True)
    inner = type(compiled)._flashover_callable if isinstance(compiled, CompiledModule) else compiled
    name = getattr(compiled, "__name__", type(compiled).__name__)

    def run(*args: Any, **kwargs: Any) -> Explanation:
        compiled(*args, **kwargs)
        return Explanation(name, inner.entries(), inner.tallies())

    return run
