"""explain(): what happens to a call."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from flashover._compile import Settings, compile_anything
from flashover._compiled_module import callable_of
from flashover._explain_html import page
from flashover._explain_text import TEXTS, missed_lines, parts_of_label, step_lines, symbol_lines

MEASURE_SECONDS = 1.0  # of repeated calls, about
MOST_VALUES = 100  # of a generator
_bandwidths: dict[str, float] = {}


class Explanation:
    """What compiling one call gave: str() for people, to_dict() for programs, to_html() for a browser."""

    def __init__(self, name: str, entries: list[dict[str, Any]], tallies: dict[str, Any]) -> None:
        self.name = name
        self.entries = sorted(entries, key=lambda e: e["serial"])
        self.tallies = tallies
        self.bandwidth: dict[str, float] = {}  # by device, bytes a second, where it was measured
        for e in self.entries:
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
    def breaks(self) -> list[dict[str, str]]:
        """Where a graph ends in the middle of the program and another one goes on."""
        return [{k: e[k] for k in ("reason", "where", "stack")} for e in self.entries if e["breaks"]]

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
            "guards": [g for e in self.entries for g in e["guards"]],
            "skipped": self.tallies["skipped"],
            "eager": self.eager,
            "eager_call_count": self.tallies["eager_calls"],
            "eager_frame_count": self.tallies["eager_frames"],
            "bandwidth": self.bandwidth,
        }

    def to_html(self) -> str:
        """One page that needs nothing beside itself."""
        return page(self)

    def save(self, path: str | Path) -> None:
        """Writes to_html() to a file."""
        Path(path).write_text(self.to_html(), encoding="utf-8")

    def __str__(self) -> str:
        d = self.to_dict()
        lines = [
            f"{self.name}: {d['graph_count']} graph(s), {len(self.breaks)} graph break(s), "
            f"{len(self.declines)} call(s) left eager, "
            f"{d['op_count']} ops, {d['kernel_count']} kernels, {d['extern_call_count']} extern calls"
        ]
        if d["skipped"]:
            lines.append(f"  not tried: {d['skipped']}")
        for x in self.eager:
            what = "part of the call" if x["frame"] else "call"
            times = f" ({x['count']} times)" if x["count"] > 1 else ""
            lines.append(f"  ran eager, {what}{times}: {x['reason']}" + (f" at {x['where']}" if x["where"] else ""))
        for kind, stops in (("eager", self.declines), ("graph break", self.breaks)):
            for x in stops:
                lines.append(f"  {kind}: {x['reason']}" + (f"\n    at {x['where']}" if x["where"] else ""))
                lines += [f"      {frame}" for frame in x["stack"].splitlines()]
                if x.get("stays"):
                    lines.append(f"    cannot go on after it: {x['stays']}")
        for device, rate in self.bandwidth.items():
            lines.append(f"  memory of {device}: {rate / 1e9:.0f} GB/s measured (copying)")
        for i, e in enumerate(self.graphs):
            times = ", ".join(f"{k} {v * 1e3:.1f} ms" for k, v in e["stages"].items() if v >= 5e-5)
            cache = ", from the disk cache" if e["cache_hit"] else ""
            after = f" from {e['continues']}" if e["continues"] else ""
            lines.append(f"  graph {i}{after}: {e['ops']} ops, {e['seconds'] * 1e3:.1f} ms{cache} ({times})")
            if e["training"]:
                forward = e["kernels"] - e["backward_kernels"]
                lines.append(
                    f"    forward {forward} kernels, backward {e['backward_kernels']} kernels, "
                    f"{e['saved_bytes']} bytes kept for the backward"
                )
            if e["missed"]:
                lines.append(f"    compiled again ({e['seconds'] * 1e3:.1f} ms), as version {e['version']}, because:")
                lines += [f"      {line}" for line in missed_lines(e)]
            if symbols := list(symbol_lines(e)):
                lines.append(f"    sizes that version {e['version']} serves:")
                lines += [f"      {line}" for line in symbols]
            lines += [f"    {line}" for line in step_lines(e["steps"])]
            parts = f": {e['guard_parts']}" if e["guard_parts"] else ""
            lines.append(f"    {len(e['guards'])} guards in {e['guard_instructions']} compares{parts}")
            lines += [f"      {g}" for g in e["guards"]]
            for title in TEXTS:
                if title in e["texts"]:
                    lines.append(f"    {title}:")
                    lines += [f"      {line}" for line in e["texts"][title].splitlines()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        """One line: at a prompt and in a debugger str() would be all the text there is."""
        d = self.to_dict()
        counts = (
            f"{d['graph_count']} graphs, {len(self.breaks)} breaks, {len(self.declines)} eager, "
            f"{d['kernel_count']} kernels, {d['extern_call_count']} extern calls"
        )
        return f"<flashover.Explanation of {self.name}: {counts}; print() it, or .save('page.html')>"


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second, read and written, of copying far more than the caches hold. Once a process."""
    known = _bandwidths.get(str(device))
    if known:
        return known
    count = 64 << 20 if device.type == "cpu" else 256 << 20
    try:
        source = torch.zeros(count, dtype=torch.float32, device=device)
        target = torch.ones_like(source)
    except torch.OutOfMemoryError:
        return 0.0

    def once() -> float:
        if device.type == "cpu":
            start = time.perf_counter()
            target.copy_(source)
            return time.perf_counter() - start
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        target.copy_(source)
        after.record()
        after.synchronize()
        return before.elapsed_time(after) / 1e3

    with torch.no_grad():
        least = min(once() for _ in range(6))
    _bandwidths[str(device)] = 8 * count / least
    return _bandwidths[str(device)]


def tensors_in(value: Any, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
        return
    items: Any = ()
    if isinstance(value, dict):
        items = value.values()
    elif isinstance(value, (list, tuple, set)):
        items = value
    elif hasattr(value, "__dataclass_fields__"):
        items = vars(value).values()
    for item in items:
        yield from tensors_in(item, seen)


def leaves_of(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """What autograd would put gradients into."""
    todo = [o.grad_fn for o in outputs if o.grad_fn is not None]
    seen, found = set(todo), []
    while todo:
        node = todo.pop()
        if hasattr(node, "variable"):
            found.append(node.variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
    return found


def repeat(call: Callable[[], Any], cuda: bool) -> None:
    """Calls for about MEASURE_SECONDS; with a backward where there is one, which leaves .grad alone."""
    end = time.perf_counter() + MEASURE_SECONDS
    for n in range(100):
        if n >= 3 and time.perf_counter() > end:
            break
        if cuda:
            torch.cuda._sleep(5_000_000)  # the steps are queued before the first one starts
        outputs = [t for t in tensors_in(call()) if t.requires_grad and t.grad_fn is not None]
        if outputs and (leaves := leaves_of(outputs)):
            if cuda:
                torch.cuda._sleep(5_000_000)
            torch.autograd.grad(outputs, leaves, [torch.ones_like(o) for o in outputs], allow_unused=True)


def explain(
    target: Callable[..., Any], *, measure: bool = False, **compile_arguments: Any
) -> Callable[..., Explanation]:
    """explain(model)(*args): compiles and runs that call once, apart from what is compiled already; a generator is run.

    measure=True: then makes the call again for a second or so, the backward too, and gives the time of each step and
    its share of the memory's bandwidth. Whatever the call writes it writes each time.
    """
    settings = getattr(callable_of(target) or target, "_flashover_settings", None)
    if compile_arguments or settings is None:
        full = {f.name: f.default for f in dataclasses.fields(Settings) if f.name != "values"}
        unknown = set(compile_arguments) - set(full)
        if unknown:
            raise TypeError(f"explain() got unknown arguments: {', '.join(sorted(unknown))}")
        settings = Settings.checked(**{**full, **compile_arguments})
    compiled = compile_anything(target, settings, keep_text=True)
    inner = callable_of(compiled) or compiled
    name = getattr(compiled, "__name__", type(compiled).__name__)

    def run(*args: Any, **kwargs: Any) -> Explanation:
        result = compiled(*args, **kwargs)
        if inspect.isgenerator(result):
            for _ in itertools.islice(result, MOST_VALUES):
                pass
        if not measure:
            return Explanation(name, inner.entries(), inner.tallies())
        devices = {e["device"] for e in inner.entries() if e["device"]}
        inner.measure(True)
        try:
            repeat(lambda: compiled(*args, **kwargs), any(d.startswith("cuda") for d in devices))
        finally:
            inner.measure(False)
        made = Explanation(name, inner.entries(), inner.tallies())
        for device in sorted(devices):
            if rate := copy_bandwidth(torch.device(device)):
                made.add_bandwidth(device, rate)
        return made

    return run
