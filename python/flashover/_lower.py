"""lower(): the stages of the compiler for a call, without running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

import torch

from flashover import _C
from flashover._compile import Settings, compile_anything
from flashover._compiled_module import callable_of
from flashover._explain import copy_bandwidth, product_rate
from flashover._explanation import Explanation
from flashover._types import P, R
from flashover.exc import Unsupported


@dataclass(frozen=True)
class Cost:
    """What a call computes and moves."""

    flops: float | None  # floating-point operations; None where sizes are symbols
    bytes_accessed: int  # that its kernels and libraries read and write
    bytes_temporary: int  # of memory between them
    kernels: int
    extern_calls: int  # of libraries
    bound_by: str  # "memory", "compute", or "nothing" where nothing is computed
    seconds: float  # the least that it can take at this machine's measured rates

    @property
    def intensity(self) -> float | None:
        """Operations for each byte."""
        return None if self.flops is None or not self.bytes_accessed else self.flops / self.bytes_accessed


class Lowered(Generic[P, R]):
    """A call that was captured and compiled, and has not run."""

    def __init__(self, compiled: Callable[P, R], name: str, entry: dict[str, Any]) -> None:
        self._compiled = compiled
        self._entry = entry
        tallies: dict[str, Any] = {"eager": [], "skipped": None, "eager_calls": 0, "eager_frames": 0}
        self.explanation = Explanation(name, [entry], tallies)

    def compile(self) -> Callable[P, R]:
        """The compiled callable, which holds the code of this call already."""
        return self._compiled

    def stages(self) -> list[str]:
        """The names that as_text() takes."""
        return self.explanation.stages()

    def as_text(self, stage: str = "traced") -> str:
        """One stage: "traced", a pass by its name, "loops", "plan", "kernels" (their source), "guards"."""
        return self.explanation.text(stage)

    def cost_analysis(self) -> Cost:
        """Operations and bytes, and which of the two bounds the call on this machine (both rates are measured once)."""
        steps = [s for s in self._entry["steps"] if not s["frozen"]]
        moved = sum(s["bytes_read"] + s["bytes_written"] for s in steps)
        traced = self._entry["texts"].get("traced")
        flops = _C.flops(traced) if traced else 0.0
        device = torch.device(self._entry["device"] or "cpu")
        memory, compute = moved / (copy_bandwidth(device) or 1.0), (flops or 0.0) / (product_rate(device) or 1.0)
        bound = "nothing" if not memory and not compute else "memory" if memory >= compute else "compute"
        return Cost(
            flops, moved, self._entry["arena_bytes"], self._entry["kernels"], self._entry["extern_calls"], bound,
            max(memory, compute),
        )  # fmt: skip

    def __repr__(self) -> str:
        e = self._entry
        return (
            f"<flashover.Lowered {self.explanation.name}: {e['kernels']} kernels, {e['extern_calls']} extern calls; "
            ".as_text(stage), .cost_analysis(), .compile()>"
        )


def lower(target: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Lowered[P, R]:
    """Captures and compiles the call target(*args, **kwargs), and does not run it. It has to be one graph: where it is
    not, exc.Unsupported names the line. For options: lower(flashover.compile(f, options=...), *args)."""
    inner = callable_of(target) or target
    given: Settings = getattr(inner, "_flashover_settings", None) or Settings.checked(
        "flashover", False, None, None, None
    )
    settings = Settings(given.backend, True, given.dynamic, given.mode, given.options, given.values).at_once()
    compiled = compile_anything(target, settings, keep_text=True)
    entry = (callable_of(compiled) or compiled).lower(*args, **kwargs)
    name = getattr(compiled, "__name__", type(compiled).__name__)
    if not entry["compiled"]:
        raise Unsupported(
            f"{name} cannot be lowered: {entry['reason']}", entry["reason"], entry["where"], entry["stack"]
        )
    return Lowered(compiled, name, entry)
