"""What a compiled callable holds right now: .explain(), .stats(), .versions, .source(), and flashover.live() for
modules, whose attributes are the model's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flashover import _C
from flashover._compiled_module import callable_of
from flashover._explanation import Explanation
from flashover.exc import UserError


@dataclass(frozen=True)
class Stats:
    """Counts and times of a callable's calls so far."""

    calls: int
    eager_calls: int  # that ran as the program is written
    eager_frames: int  # parts of calls that did
    versions: int
    graphs: int
    graph_breaks: int
    kernels: int
    extern_calls: int  # of libraries, in a call of each version
    recompiles: int
    recompile_seconds: float
    compile_seconds: float
    compiling: int  # graphs that the background compiles, or will
    cache_hits: int  # graphs that came from the disk cache


@dataclass(frozen=True)
class Version:
    """What one compilation is for."""

    number: int
    hits: int
    guards: list[str]
    sizes: list[str]  # symbols: which sizes of inputs may change
    because: str  # why there is another version than those before it
    seconds: float
    compiled: bool  # else such calls are known to run eager, for `reason`
    reason: str
    continues: str  # where it goes on after a graph break; empty: it starts with the call

    def __repr__(self) -> str:
        what = "compiled" if self.compiled else f"eager: {self.reason}"
        after = f" from {self.continues}" if self.continues else ""
        sizes = f", sizes {', '.join(self.sizes)}" if self.sizes else ""
        why = f", because {self.because}" if self.because else ""
        return (
            f"<version {self.number}{after}: {what}, used {self.hits} times, {len(self.guards)} guards{sizes}, "
            f"{self.seconds * 1e3:.1f} ms{why}>"
        )


def _version(e: dict[str, Any]) -> Version:
    sizes = [s["size"] for s in e["symbols"] if s["value"] is None]
    return Version(
        e["version"], e["hits"], e["guards"], sizes, e["recompiled_for"], e["seconds"], e["compiled"], e["reason"],
        e["continues"],
    )  # fmt: skip


class Live:
    """A view of a compiled function or module; what it tells is of the moment when it is asked."""

    def __init__(self, compiled: Any) -> None:
        self._callable = compiled

    def _entries(self) -> list[dict[str, Any]]:
        return sorted(self._callable.entries(), key=lambda e: e["serial"])

    def explain(self) -> Explanation:
        """What became of its calls so far."""
        name = getattr(self._callable, "__name__", None) or type(self._callable.__bound_self__).__name__
        return Explanation(name, self._callable.entries(), self._callable.tallies())

    def stats(self) -> Stats:
        entries, tallies = self._entries(), self._callable.tallies()
        graphs = [e for e in entries if e["compiled"]]
        return Stats(
            calls=tallies["calls"],
            eager_calls=tallies["eager_calls"],
            eager_frames=tallies["eager_frames"],
            versions=sum(not e["continues"] for e in entries),
            graphs=len(graphs),
            graph_breaks=sum(e["breaks"] for e in entries),
            kernels=sum(e["kernels"] for e in graphs),
            extern_calls=sum(e["extern_calls"] for e in graphs),
            recompiles=tallies["recompiles"],
            recompile_seconds=tallies["recompile_seconds"],
            compile_seconds=sum(e["seconds"] for e in entries),
            compiling=sum(e["state"] == "compiling" for e in entries),
            cache_hits=sum(bool(e["cache_hit"]) for e in graphs),
        )

    @property
    def versions(self) -> list[Version]:
        """What it was compiled for, oldest first."""
        return [_version(e) for e in self._entries()]

    def source(self) -> str:
        """The source of its kernels. It is kept with options={"keep_text": True} only; explain() keeps its own."""
        entries = [e for e in self._entries() if e["compiled"]]
        if any(e["kernels"] and not e["kernel_sources"] for e in entries):
            raise UserError(
                "the sources of kernels are not kept by default: compile with options={'keep_text': True}, "
                "or ask flashover.explain(f)(*args).text('kernels')"
            )
        return "\n\n".join(source for e in entries for source in e["kernel_sources"].values())

    def __repr__(self) -> str:
        return repr(self._callable)


def live(compiled: Any) -> Live:
    """A view of what flashover.compile returned, a function or a module: .explain(), .stats(), .versions, .source()."""
    inner = callable_of(compiled) or compiled
    if not isinstance(inner, _C.CompiledCallable):
        raise TypeError(f"flashover.live needs what flashover.compile returned, not {type(compiled).__name__}")
    return Live(inner)


class _Told:
    """An attribute of compiled callables that asks Live. An attribute of the program's function of that name hides it,
    as it is in the instance's dict and this has no __set__."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.__doc__ = getattr(Live, name).__doc__

    def __get__(self, compiled: Any, _: Any = None) -> Any:
        return self if compiled is None else getattr(Live(compiled), self._name)


for _name in ("explain", "stats", "versions", "source"):
    _C.add_method(_C.CompiledCallable, _name, _Told(_name))
