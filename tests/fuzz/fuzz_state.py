"""Random models with state, and what programs do to them, in any order: `python tests/fuzz/fuzz_state.py --seconds 60`.

A sequence is a model of state_models and steps of state_steps: calls in every mode, training, writes by every way that
torch knows, other tensors in the place of parameters, copies. The compiled world must look like its eager twin after
each step: results, gradients, every parameter and buffer, version counters (of aliases, too), who shares memory with
whom, Python attributes, what is raised. One line for each sequence that does not, with its seed.
"""

from __future__ import annotations

import search_path

import argparse
import os
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from seed_batches import run_batch
from state_steps import STEPS, World

# Compiled code may have kept a value where eager keeps memory that was overwritten since: it has the gradient.
RICHER = "a gradient that eager lost"
# torch.utils.swap_tensors counts references: to parameters that eager keeps for a backward and compiled code does not,
# or the other way round (docs/limits.md). Who lets a swap pass refuses the backward.
COUNTED = "a swap that one of the two refuses"
REFUSALS = {
    "in place": "modified by an inplace",
    "swap": "Expected use_count of",
    "swap of what is frozen": "gradient edge for a Tensor that does not require",
    "swapped": "poisoned by swap_tensors",
}
NUDGES = 12  # runs of eager itself on inputs that differ in their last bits, before it is called a judge
LEAST = 0.3  # of what is 0 but for roundings (a bias before a batch norm), this counts as the size
LARGE = 1e4  # beyond it eager itself is all rounding


@dataclass
class Picture:
    """What can be seen of a world after a step."""

    step: str
    raised: str = ""
    refusal: str = ""  # of REFUSALS
    tensors: dict[str, torch.Tensor | None] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def note(picture: Picture, name: str, t: Any) -> None:
    if not isinstance(t, torch.Tensor):
        picture.facts[name] = t
        return
    picture.tensors[name] = t.detach().clone()
    try:
        history = (t.requires_grad, t.is_leaf)
    except RuntimeError:  # a view from a no_grad block whose base was written after it
        history = (False, False)
    picture.facts[name] = (str(t.dtype), tuple(t.shape), t.stride(), *history, t.is_inference(), type(t).__name__)


def version_of(t: torch.Tensor) -> int | None:
    """How often the tensor was written; None where torch does not count (inference tensors, and normal tensors that
    were given the memory of one)."""
    try:
        return t._version
    except RuntimeError:
        return None


def look(w: World, picture: Picture, seen: list[Any]) -> None:
    for i, t in enumerate(seen):
        note(picture, f"result {i}", t)
    owners: dict[int, str] = {}
    kept: list[tuple[str, torch.Tensor]] = [
        *w.model.named_parameters(remove_duplicate=False), *w.model.named_buffers(remove_duplicate=False),
        *((f"average.{k}", v) for k, v in (w.average.state_dict(keep_vars=True).items() if w.average else ())),
        *((f"alias {i}", t) for i, t in enumerate(w.aliases)),
    ]  # fmt: skip
    for name, t in kept:
        note(picture, name, t)
        picture.facts[name + " version"] = version_of(t)
        picture.facts[name + " lies with"] = owners.setdefault(t._typed_storage()._cdata, name)
        if isinstance(t, torch.nn.Parameter):
            note(picture, name + ".grad", t.grad)
    for name, m in w.model.named_modules():
        for key, value in vars(m).items():
            if isinstance(value, (bool, int, float, str, type(None))):
                picture.facts[f"{name}.{key}"] = value


def steps_of(seed: int) -> list[tuple[Callable[[World, random.Random], list[Any]], int]]:
    r = random.Random(seed)
    names = [s for weight, s in STEPS for _ in range(weight)]
    # A few kinds at a time, so that they meet.
    if r.random() < 0.5:
        names = r.sample(names, 12)
    return [(r.choice(names), r.randrange(1 << 30)) for _ in range(r.randint(6, 18))]


def take_step(w: World, step: Callable[..., list[Any]], number: int, seed: int) -> Picture:
    picture = Picture(f"{number}:{step.__name__}")
    torch.manual_seed(seed)
    seen: list[Any] = []
    try:
        seen = step(w, random.Random(seed))
    except Exception as error:
        text = str(error)
        picture.raised = type(error).__name__
        picture.refusal = next((kind for kind, part in REFUSALS.items() if part in text), "")
        picture.facts["why"] = ""
        picture.step += f" ({text.splitlines()[0][:150] if text else ''})"
    look(w, picture, seen)
    return picture


def history(
    seed: int, dtype: torch.dtype, compile_fn: Callable[..., Any] | None, nudge: int | None = None
) -> list[Picture]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if compile_fn:
            warnings.filterwarnings("error", message="flashover: ")
            # Parameters that were loaded into one storage: said, and eager's.
            warnings.filterwarnings("ignore", message="flashover: .*aliased inputs: a written tensor")
        w = World(seed, dtype, compile_fn, nudge)
        return [take_step(w, step, i, s) for i, (step, s) in enumerate(steps_of(seed))]


def differs(a: torch.Tensor | None, b: torch.Tensor | None, tolerance: float) -> str:
    if a is None or b is None or not a.is_floating_point():
        same = (a is None) == (b is None) and (a is None or b is None or torch.equal(a, b))
        return "" if same else f"{a} instead of {b}"
    a, b = a.double(), b.double()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return "infinite elsewhere"
    a, b = a.nan_to_num(0, 0, 0), b.nan_to_num(0, 0, 0)
    error, size = (a - b).abs().max().item() if a.numel() else 0, b.abs().max().item() if b.numel() else 0
    return "" if error <= tolerance * max(size, LEAST) else f"off by {error:.2g} of {size:.2g}"


def wild(picture: Picture) -> bool:
    return any(
        t is not None and t.is_floating_point() and not bool((t.abs() < LARGE).all()) for t in picture.tensors.values()
    )


def compare(ours: Picture, eager: Picture, tolerance: float) -> str:
    if eager.refusal == "in place" and not ours.raised:
        return RICHER
    if ours.refusal != eager.refusal and "swap" in (ours.refusal[:4], eager.refusal[:4]):
        if {ours.refusal, eager.refusal} != {"in place", "swapped"}:
            return COUNTED
    elif (ours.raised, ours.refusal) != (eager.raised, eager.refusal):
        return f"raised {ours.raised or 'nothing'} ({ours.step}), not {eager.raised or 'nothing'}"
    for name, fact in eager.facts.items():
        if ours.facts.get(name) != fact:
            return f"{name}: {ours.facts.get(name)}, not {fact}"
    if more := ours.facts.keys() - eager.facts.keys():
        return f"there is also {sorted(more)}"
    for name, t in eager.tensors.items():
        if problem := differs(ours.tensors[name], t, tolerance):
            return f"{name}: {problem}"
    return ""


def tolerance_of(dtype: torch.dtype, step: int) -> float:
    return (2e-3 if dtype == torch.float32 else 1e-7) * (1 + step)


def dtype_of(seed: int) -> torch.dtype:
    return torch.float32 if seed % 2 else torch.float64


def steady(seed: int, eager: list[Picture]) -> bool:
    """Eager computes the same when its inputs differ in their last bits. A batch norm over rows that are equal but for
    roundings, or a value at the edge between two levels, makes them large: then there is nothing to compare with."""
    dtype = dtype_of(seed)
    for nudge in range(NUDGES):
        nudged = history(seed, dtype, None, nudge)
        for i, (a, b) in enumerate(zip(nudged, eager, strict=False)):
            if compare(a, b, tolerance_of(dtype, i)):
                return False
    return True


def run_one(seed: int, compile_fn: Callable[..., Any]) -> str | None:
    """What is wrong; '' if nothing; None: eager itself cannot say."""
    dtype = dtype_of(seed)
    eager = history(seed, dtype, None)
    ours = history(seed, dtype, compile_fn)
    for i, (a, b) in enumerate(zip(ours, eager, strict=True)):
        if wild(b):
            break
        if "call_in_other_dtype" in b.step:
            dtype = torch.float32
        if problem := compare(a, b, tolerance_of(dtype, i)):
            if problem in (RICHER, COUNTED):
                break
            return f"step {b.step}: {problem}" if steady(seed, eager[: i + 1]) else None
    return ""


def judge(seed: int) -> tuple[str | None, str]:
    import flashover

    try:
        return run_one(seed, flashover.compile), ""
    except Exception as failure:
        return f"{type(failure).__name__}: {failure} " + " | ".join(traceback.format_exc(limit=-2).splitlines()), ""


def show(seed: int) -> None:
    """A sequence for people: the model, and what each step made of both worlds."""
    import flashover

    dtype = dtype_of(seed)
    w = World(seed, dtype, None)
    print(w.model, dtype, w.whole, w.options)
    for i, (a, b) in enumerate(zip(history(seed, dtype, flashover.compile), history(seed, dtype, None), strict=True)):
        print(b.step, "|", b.raised, "|", compare(a, b, tolerance_of(dtype, i)) or "ok", "(wild)" if wild(b) else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--start", "--seed", type=int, default=int(time.time()) % 10**7, help="the first seed")
    parser.add_argument("--count", type=int, default=10**9, help="how many, if the time is enough")
    parser.add_argument("--only", type=int, help="run this one seed and print the sequence")
    options = parser.parse_args()
    if options.only is not None:
        show(options.only)
        import flashover

        problem = run_one(options.only, flashover.compile)
        print("eager cannot say" if problem is None else problem or "right")
        return 1 if problem else 0
    os.environ.setdefault("FLASHOVER_CACHE_DIR", tempfile.mkdtemp(prefix="fuzz-state-"))
    counts: dict[str, int] = {}
    end, seed, stop = time.time() + options.seconds, options.start, options.start + options.count
    while time.time() < end and seed < stop:
        some = range(seed, min(seed + 40, stop))
        run_batch(some, judge, counts)
        seed = some.stop
    print(f"{sum(counts.values())} sequences from {options.start} to {seed}: {counts}")
    return 1 if counts.get("wrong", 0) + counts.get("crashed", 0) else 0


if __name__ == "__main__":
    sys.exit(main())
