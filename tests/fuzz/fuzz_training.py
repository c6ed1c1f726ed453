"""Random programs and modules, differentiated compiled and eager: `./x fuzz-train 600` by hand, a slice in CI.

Programs are fuzz_programs' (in-place writes, views, broadcasting, 0-d, empty, stride-0 and non-contiguous inputs) and
fuzz_modules' networks in train mode. Each runs as one of many users would: leaves or tensors with a history as inputs,
some frozen, parts under no_grad, some results unused, backward once or twice, less memory than asked for, autocast.
Compared elementwise with an fp64 run as the arbiter: results, gradients (and whether there is one), inputs and buffers
after the call; and strides, dtypes, requires_grad, memory shared.
"""

from __future__ import annotations

import search_path

import argparse
import copy
import functools
import os
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import fuzz_modules
import torch
from fuzz_programs import (
    DISCONTINUOUS,
    PRECISIONS,
    Program,
    generate,
    geometry,
    magnitude,
    overlaps_itself,
    same_up_to_rounding,
    sharing,
)
from seed_batches import run_batch

from flashover.exc import EagerWarning

# Gradients jump where these choose, and results that tie in eager may not tie here.
JUMPS = (*DISCONTINUOUS, "relu", "clamp", "abs", "max", "min", "sort", "topk", "median", "kthvalue", "hard", "elu")

# What their gradients are at NaN eager has in two ways: one in its vectors, another in the elements left over.
TWO_WAYS_AT_NAN = ("hardtanh", "relu6", "hardswish", "hardshrink", "softshrink", "elu", "celu")


def weights(t: torch.Tensor, number: int) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, max(t.numel(), 1), dtype=torch.float64)[: t.numel()].reshape(t.shape) * (number + 1)


def loss_of(tensors: list[torch.Tensor]) -> torch.Tensor | None:
    total = None
    for i, t in enumerate(tensors):
        if t.requires_grad:
            term = (t.double() * weights(t, i)).sum()
            total = term if total is None else total + term
    return total


def history(t: torch.Tensor) -> str:
    try:
        return f"requires_grad={t.requires_grad} leaf={t.is_leaf}"
    except RuntimeError as forbidden:  # a view from a no_grad block whose base was written after it
        return str(forbidden)[:60]


def rewritten(program: Program, rng: random.Random) -> str:
    """Some lines under no_grad."""
    head, *lines, last = program.source.splitlines()
    out = [head]
    for line in lines:
        if rng.random() < 0.06:
            out += ["    with torch.no_grad():", "    " + line]
        else:
            out.append(line)
    return "\n".join([*out, last, ""])


def moves_as_much(got: torch.Tensor, eager: torch.Tensor, shaken: torch.Tensor | None) -> bool:
    """Roundings of the inputs change most of this result as much as it is off."""
    if shaken is None or geometry(got) != geometry(eager) or not eager.is_floating_point():
        return False
    error, moved = (got.double() - eager.double()).abs(), (shaken.detach().double() - eager.double()).abs()
    agree = (got == eager) | (got.isnan() & eager.isnan())
    usual = moved[torch.isfinite(moved)]
    return usual.numel() > 0 and bool((agree | (error <= 16 * usual.quantile(0.9))).all())


def placed_as(ours: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """ATen's *_scatter clone all of the memory that a view is part of; where in it the result lies is no promise."""
    if ours.storage_offset() or not eager.storage_offset():
        return eager
    return torch.empty_strided(eager.shape, eager.stride(), dtype=eager.dtype).copy_(eager)


class Case:
    """A program and how it is used; the same for eager, fp64 and compiled."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed * 31 + 7)
        self.seed = seed
        self.program = generate(seed)
        if rng.random() < 0.5:
            self.program.source = rewritten(self.program, rng)
        self.wide = rng.random() < 0.7  # else the dtypes as they come
        inputs = self.inputs()
        self.grad = [t.is_floating_point() and rng.random() < 0.8 for t in inputs]
        self.history = [rng.random() < 0.6 for _ in inputs]
        self.used = [rng.random() < 0.85 for _ in range(8)]
        self.twice = rng.random() < 0.15
        self.options = {"memory_budget": rng.choice([100, 100, 100, 50, 0])}
        self.backend = "eager" if rng.random() < 0.3 else "flashover"

    def inputs(self) -> list[torch.Tensor]:
        return [t.float() if self.wide and t.is_floating_point() else t for t in self.program.make_inputs()]

    def run(
        self, f: Callable[..., Any], exact: bool = False, shaken: float = 0
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor | None], Any]:
        """Results, inputs after the call, gradients of the leaves. shaken: inputs are off by so much."""
        leaves, given = [], []
        for t, grad, history in zip(self.inputs(), self.grad, self.history, strict=True):
            if shaken and t.is_floating_point() and not overlaps_itself(t):
                signs = torch.arange(t.numel()).reshape(t.shape) % 2 * 2 - 1
                t.mul_((1 + shaken * signs).to(t.dtype))
            if exact and t.is_floating_point():
                t = torch.empty_strided(t.size(), t.stride(), dtype=torch.float64).copy_(t) if t.numel() else t.double()
            leaf = t.detach().requires_grad_(grad)
            leaves.append(leaf)
            if grad and history:  # strides as they are
                leaf = leaf if overlaps_itself(t) else leaf.as_strided(leaf.size(), leaf.stride()) * 1
            elif grad:
                leaf = leaf.view(leaf.size()) if t.numel() else leaf  # a view: writing it is writing the leaf
            given.append(leaf)
        torch.manual_seed(self.seed)
        out = [t for t in f(*given) if isinstance(t, torch.Tensor)]
        counted = [t for t, used in zip(out, self.used * 4, strict=False) if used] + given
        total = loss_of(counted)
        grads: list[torch.Tensor | None] = [None] * len(leaves)
        # (What was written is no leaf: other results of a compiled call do not follow from it.)
        wanted = [i for i, t in enumerate(leaves) if t.requires_grad and t.is_leaf]
        if total is not None and wanted:
            for again in range(2 if self.twice else 1):
                found = torch.autograd.grad(
                    total, [leaves[i] for i in wanted], allow_unused=True, retain_graph=self.twice and not again
                )
                for i, g in zip(wanted, found, strict=True):
                    grads[i] = g if not again or g is None else grads[i] + g
        return out, given, grads, leaves

    def problem(self, compile_fn: Callable[..., Any]) -> str | None:
        """'' or what is wrong; None: not a program to differentiate."""
        function, exact_function = self.program.function(), self.program.function(exact=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                eager = self.run(function)
            except (RuntimeError, NotImplementedError) as refused:
                return self.refused(compile_fn(function, backend=self.backend, options=self.options), str(refused))
            try:
                exact = self.run(exact_function, exact=True)
            except (RuntimeError, IndexError, ValueError, NotImplementedError):
                exact = eager
            warnings.filterwarnings("error", message="flashover: ")
            warnings.simplefilter("ignore", EagerWarning)  # counted as eager
            fast = compile_fn(function, backend=self.backend, options={"verify": True, **self.options})
            for call in range(2):
                got = self.run(fast)
                if problem := self.compare(got, eager, exact):
                    return f"call {call}: {problem}"
        return ""

    def refused(self, fast: Callable[..., Any], error: str) -> str | None:
        """What eager raises, compiled code raises as well."""
        try:
            self.run(fast)
        except (RuntimeError, NotImplementedError):
            return None
        # The part before a graph break may have kept a value, or computes it again, where eager's was written since
        # (docs/limits.md, "A kept result ...").
        if "modified by an inplace operation" in error:
            return None
        return f"eager raised {error[:200]}, compiled did not"

    def compare(self, got: Any, eager: Any, exact: Any) -> str:
        inputs = self.inputs()
        precisions = [t.dtype for t in inputs if t.is_floating_point()] + [torch.float32]
        source = self.program.source
        eps = max(torch.finfo(d).eps for d in precisions + [d for w, d in PRECISIONS.items() if w in source])
        jumps = any(word in source for word in JUMPS)
        shaken = None
        for what, ours, theirs, best in zip(
            ("result", "input", "gradient"), got[:3], eager[:3], exact[:3], strict=True
        ):
            if len(ours) != len(theirs):
                return f"{len(ours)} {what}s, not {len(theirs)}"
            if any((e is None) != (x is None) or (e is not None and e.shape != x.shape)
                   for e, x in zip(theirs, best, strict=True)):  # fmt: skip
                best = theirs
            for i, (g, e, x) in enumerate(zip(ours, theirs, best, strict=True)):
                name = f"{what} {i}"
                if (g is None) != (e is None):
                    return f"{name}: {'none' if g is None else 'there'}, in eager {'none' if e is None else 'there'}"
                if g is None:
                    continue
                if history(g) != history(e):
                    return f"{name}: {history(g)}, not {history(e)}"
                if what == "input" and g._version != e._version:
                    return f"{name}: version {g._version}, not {e._version}"
                grown = 64 if what == "gradient" else 1  # sums of many terms that cancel
                floor = eps * grown * max(magnitude(inputs), magnitude([e.detach()]) * 0.05)
                g, e, x = g.detach(), e.detach(), x.detach()
                handed_out = g
                if "_scatter(" in source and g.stride() == e.stride():
                    e = placed_as(g, e)
                if what == "gradient" and any(word in source for word in TWO_WAYS_AT_NAN):
                    undecided = inputs[i].isnan() | e.isnan() | g.isnan()
                    g, e, x = (torch.where(undecided, 0, t) for t in (g, e, x)) if undecided.any() else (g, e, x)
                if "var_mean(" in source and geometry(g) == geometry(e):
                    # Of a row with an infinity eager says inf if it comes last, else NaN.
                    endless = g.isnan() & e.isinf()
                    g, e, x = (t.masked_fill(endless, 0) for t in (g, e, x)) if endless.any() else (g, e, x)
                problem = same_up_to_rounding(g, e, x, eps * grown, floor)
                if problem and jumps and geometry(g) == geometry(e) and not g.is_floating_point():
                    settled = e == x  # where eager is not fp64 itself, a rounding decides
                    problem = "" if torch.equal(g[settled], e[settled]) else problem
                if problem and geometry(g) == geometry(e) and torch.equal(g.isnan(), x.isnan()):
                    ends = ~torch.isfinite(x.double())  # where fp64 overflows or not decides
                    problem = same_up_to_rounding(*(t.masked_fill(ends, 0) for t in (g, e, x)), eps * grown, floor)
                if problem and (not jumps or same_up_to_rounding(g, e, e, eps * 4 * grown, floor * 16)):
                    # A rounding that the program makes large (before `%`, say) is none of ours.
                    kind = ("result", "input", "gradient").index(what)
                    shaken = shaken or self.run(self.program.function(), shaken=eps)
                    if not moves_as_much(g, e, shaken[kind][i]):
                        return f"{name}: {problem}"
                if what == "result":
                    shared = sharing(handed_out, [*got[1], *got[0]])
                    expected = sharing(theirs[i], [*eager[1], *eager[0]])
                    if shared != expected:
                        return f"{name}: shares memory with {shared}, not {expected}"
        return ""


class ModuleCase:
    """A network of fuzz_modules in train mode, trained for two steps."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.autocast = self.rng.random() < 0.15
        self.input_grad = self.rng.random() < 0.6
        self.frozen = self.rng.random() * 0.4

    def net(self) -> tuple[torch.nn.Module, torch.Tensor]:
        net, x = fuzz_modules.make(self.seed)
        net.train().requires_grad_(True)
        rng = random.Random(self.seed)
        for p in net.parameters():
            p.requires_grad_(rng.random() >= self.frozen)
        if any(isinstance(m, torch.nn.GroupNorm) for m in net.modules()):
            self.input_grad = True  # eager's backward crashes on channels-last inputs without a gradient
        if x.shape[0] == 1:  # eager's batch norm misreads gradients of one image that lie channels last
            x = torch.cat([x, x.flip(-1)])
        return net, x

    def run(self, net: torch.nn.Module, call: Callable[..., Any], x: torch.Tensor) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for step in range(2):
            x = x.detach().requires_grad_(self.input_grad)
            net.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast and x.dtype != torch.double):
                out = call(x)
            total = loss_of([t / max(t.numel(), 1) for t in out])
            if total is not None:
                total.backward()
            for i, t in enumerate(out):
                found[f"step {step}, result {i}"] = t
            found[f"step {step}, gradient of the input"] = x.grad
            for name, p in net.named_parameters():
                found[f"step {step}, gradient of {name}"] = p.grad
            for name, b in net.named_buffers():
                found[f"step {step}, buffer {name}"] = b.clone()
                found[f"step {step}, version of {name}"] = torch.tensor(float(b._version))
        return found

    def problem(self, compile_fn: Callable[..., Any]) -> str | None:
        net, x = self.net()
        other, exact_net = copy.deepcopy(net), copy.deepcopy(net).double()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                eager = self.run(other, other, x)
            except (RuntimeError, ValueError):
                return None
            exact = self.run(exact_net, exact_net, x.double())
            warnings.filterwarnings("error", message="flashover: ")
            warnings.simplefilter("ignore", EagerWarning)  # counted as eager
            got = self.run(net, compile_fn(net), x)
        eps = torch.finfo(torch.bfloat16 if self.autocast else torch.float32).eps
        for name, e in eager.items():
            g, best = got[name], exact[name]
            if (g is None) != (e is None):
                return f"{name}: {'none' if g is None else 'there'}, in eager {'none' if e is None else 'there'}"
            if g is None:
                continue
            if geometry(g) != geometry(e):
                return f"{name}: geometry {geometry(g)}, not {geometry(e)}"
            g, e, best = g.detach().double(), e.detach().double(), best.detach().double()
            # ReLU and max pooling jump: judged as a whole.
            ours, theirs, size = ((t.norm().item()) for t in (g - best, e - best, best))
            if not ours <= 3 * theirs + 64 * eps * size + eps * 10 * max(1, g.numel()) ** 0.5:
                return f"{name}: error {ours} against eager's {theirs}, of {size}"
        return ""

    @property
    def source(self) -> str:
        return str(self.net()[0].steps)


def case_of(seed: int) -> Case | ModuleCase:
    return ModuleCase(seed) if seed % 8 == 7 else Case(seed)


def run_one(seed: int, compile_fn: Callable[..., Any]) -> tuple[str | None, str]:
    case = case_of(seed)
    source = case.program.source if isinstance(case, Case) else ""
    try:
        return case.problem(compile_fn), source
    except Exception as failure:  # a crash of the compiled program is a finding like any other
        return f"{type(failure).__name__}: {failure}\n{traceback.format_exc(limit=-3)}", source


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--start", "--seed", type=int, default=int(time.time()) % 10**7, help="the first seed")
    parser.add_argument("--seeds", type=int, default=10**9, help="how many, if the time is enough")
    parser.add_argument("--only", type=int, help="run this one seed and print the program")
    parser.add_argument("--dynamic", action="store_true", help="sizes of arguments are symbols")
    options = parser.parse_args()
    import flashover

    compiler = functools.partial(flashover.compile, dynamic=True) if options.dynamic else flashover.compile

    if options.only is not None:
        case = case_of(options.only)
        if isinstance(case, Case):
            print(case.program.source)
            for t, grad, history in zip(case.inputs(), case.grad, case.history, strict=True):
                print(t.dtype, tuple(t.shape), t.stride(), "grad" if grad else "", "history" if history else "")
            print(case.used, "twice" if case.twice else "", case.options, case.backend)
        else:
            print(case.source)
        problem, _ = run_one(options.only, compiler)
        print(problem)
        return 1 if problem else 0
    os.environ.setdefault("FLASHOVER_CACHE_DIR", tempfile.mkdtemp(prefix="fuzz-train-"))
    counts: dict[str, int] = {}
    end, seed, stop = time.time() + options.seconds, options.start, options.start + options.seeds
    while time.time() < end and seed < stop:
        some = range(seed, min(seed + 40, stop))
        run_batch(some, lambda seed: run_one(seed, compiler), counts)
        seed = some.stop
        print(seed, counts, flush=True)
    print(f"{sum(counts.values())} programs from {options.start} to {seed}: {counts}")
    return 1 if counts.get("wrong", 0) + counts.get("crashed", 0) else 0


if __name__ == "__main__":
    sys.exit(main())
