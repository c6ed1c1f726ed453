"""explain(): what happens to a call."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from flashover._compile import Settings, compile_anything, original_of
from flashover._compiled_module import callable_of
from flashover._explanation import Explanation
from flashover._types import P

MEASURE_SECONDS = 1.0  # of repeated calls, about
MOST_VALUES = 100  # of a generator
TIMED_CALLS = 20
_bandwidths: dict[str, float] = {}
_product_rates: dict[str, float] = {}


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


def product_rate(device: torch.device) -> float:
    """Floating-point operations a second of a large f32 matrix product. Once a process."""
    known = _product_rates.get(str(device))
    if known:
        return known
    size = 1024 if device.type == "cpu" else 8192
    try:
        a = torch.ones(size, size, device=device)
    except torch.OutOfMemoryError:
        return 0.0
    with torch.no_grad():
        least = least_seconds(lambda: torch.mm(a, a), device.type == "cuda")
    _product_rates[str(device)] = 2.0 * size**3 / least
    return _product_rates[str(device)]


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


def call_once(call: Callable[[], Any], before: Callable[[], None] = lambda: None) -> None:
    """A call with a backward where there is one, which leaves .grad alone."""
    before()
    outputs = [t for t in tensors_in(call()) if t.requires_grad and t.grad_fn is not None]
    if outputs and (leaves := leaves_of(outputs)):
        before()
        torch.autograd.grad(outputs, leaves, [torch.ones_like(o) for o in outputs], allow_unused=True)


def queue_first() -> None:
    """The steps are queued before the first one starts."""
    torch.cuda._sleep(5_000_000)


def repeat(call: Callable[[], Any], cuda: bool) -> None:
    """Calls for about MEASURE_SECONDS."""
    end = time.perf_counter() + MEASURE_SECONDS
    for n in range(100):
        if n >= 3 and time.perf_counter() > end:
            break
        call_once(call, queue_first if cuda else lambda: None)


def least_seconds(call: Callable[[], Any], cuda: bool) -> float:
    """Of a whole call, the backward too; about half of MEASURE_SECONDS at most."""
    end, least = time.perf_counter() + MEASURE_SECONDS / 2, float("inf")
    for n in range(TIMED_CALLS):
        if n >= 3 and time.perf_counter() > end:
            break
        start = time.perf_counter()
        call_once(call)
        if cuda:
            torch.cuda.synchronize()
        least = min(least, time.perf_counter() - start)
    return least


def explain(target: Callable[P, Any], *, measure: bool = False, **compile_arguments: Any) -> Callable[P, Explanation]:
    """explain(model)(*args): compiles and runs that call once, apart from what is compiled already; a generator is run.

    measure=True: then makes the call again for a second or so, the backward too, and gives the time of each step and
    its share of the memory's bandwidth, and the time of a whole call, compiled and as the program is written. Whatever
    the call writes it writes each time.
    """
    settings = getattr(callable_of(target) or target, "_flashover_settings", None)
    if compile_arguments or settings is None:
        full = {f.name: f.default for f in dataclasses.fields(Settings) if f.name != "values"}
        unknown = set(compile_arguments) - set(full)
        if unknown:
            raise TypeError(f"explain() got unknown arguments: {', '.join(sorted(unknown))}")
        settings = Settings.checked(**{**full, **compile_arguments})
    compiled = compile_anything(target, settings.at_once(), keep_text=True)
    inner = callable_of(compiled) or compiled
    name = getattr(compiled, "__name__", type(compiled).__name__)

    def run(*args: P.args, **kwargs: P.kwargs) -> Explanation:
        result = compiled(*args, **kwargs)
        if inspect.isgenerator(result):
            for _ in itertools.islice(result, MOST_VALUES):
                pass
        if not measure:
            return Explanation(name, inner.entries(), inner.tallies())
        devices = {e["device"] for e in inner.entries() if e["device"]}
        cuda = any(d.startswith("cuda") for d in devices)
        tallies, hits = inner.tallies(), {e["serial"]: e["hits"] for e in inner.entries()}  # of the one call
        original = original_of(target)
        eager = least_seconds(lambda: original(*args, **kwargs), cuda)
        fast = least_seconds(lambda: compiled(*args, **kwargs), cuda)
        inner.measure(True)
        try:
            repeat(lambda: compiled(*args, **kwargs), cuda)
        finally:
            inner.measure(False)
        made = Explanation(name, [e | {"hits": hits.get(e["serial"], 0)} for e in inner.entries()], tallies)
        made.eager_seconds, made.call_seconds = eager, fast
        for device in sorted(devices):
            if rate := copy_bandwidth(torch.device(device)):
                made.add_bandwidth(device, rate)
        return made

    return run
