"""The compiled-module identity matrix: (ways to make or change a module) x (kinds of modules) x (compiled before the
act, after it, or the act done to the original) x (alone, in a parent, in a compiled parent) x (called, trained a step,
state_dict'ed), each against the same done to an ordinary module. Past the matrix, seeds are sequences of acts.

    python tests/fuzz/fuzz_identity.py --seconds 60 [--start SEED] [--count N] [--backend B] [--act A] [--kind K]
"""

from __future__ import annotations

import search_path

import argparse
import random
import sys
import time
import traceback
import warnings
from typing import Any

import torch
from identity_acts import ACTS, SLOW, tensor
from identity_kinds import KINDS, Kind
from torch import nn

import flashover

WHEN = ("before", "after", "original")  # is it compiled, relative to the act
PLACES = ("alone", "inside", "inside compiled")
USES = ("called", "trained", "state_dict")


class Holder(nn.Module):
    """A parent."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> torch.Tensor:
        return tensor(self.inner(x)) + 1


class World:
    """One module's way through a cell: what was done to it and what was found, as plain values and tensors."""

    def __init__(self, kind: Kind, when: str, place: str, compile_: Any) -> None:
        self.kind, self.when, self.place, self.compile = kind, when, place, compile_
        self.found: list[Any] = []

    def run(self, acts: list[str]) -> list[Any]:
        original = self.kind.make()
        made = original if self.when == "after" else self.compile(original)
        outer = None if self.place == "alone" else Holder(made)
        if self.place == "inside compiled":
            outer = self.compile(outer)
        for name in acts:
            target = original if self.when == "original" else made
            result = self.attempt(
                name, lambda name=name, target=target: ACTS[name](target, self.found.append, self.kind)
            )
            if isinstance(result, nn.Module):
                self.use(f"source of {name}", made)  # which must be whole still
                original = made = result
                if self.when == "original":
                    made = self.compile(result)
                if outer is not None:
                    outer.inner = made
        if self.when == "after":
            made = self.compile(made)
            if outer is not None:
                outer.inner = made
        self.use("result", made)
        if outer is not None:
            self.use("outer", outer)
        return self.found

    def attempt(self, what: str, function: Any) -> Any:
        try:
            return function()
        except Exception as e:
            self.found.append(f"{what}: {type(e).__name__}")
            if "-v" in sys.argv:
                traceback.print_exc()
            return None

    def use(self, what: str, m: nn.Module) -> None:
        def call() -> None:
            with torch.no_grad():
                self.found.append(tensor(m.eval()(self.kind.x)).clone())

        def train() -> None:
            m.train()
            parameters = [p for p in m.parameters() if p.requires_grad]
            optimizer = torch.optim.SGD(parameters, 0.05)
            with torch.random.fork_rng():
                torch.manual_seed(1)
                tensor(m(self.kind.x)).square().mean().backward()
            self.found.append([None if p.grad is None else p.grad.clone() for p in parameters])
            optimizer.step()
            optimizer.zero_grad()
            call()

        def state() -> None:
            self.found.append({k: v.clone() for k, v in m.state_dict().items()})
            m.load_state_dict({k: v + 0.25 if v.is_floating_point() else v for k, v in m.state_dict().items()})
            prefixed = {f"_orig_mod.{k}": v for k, v in m.state_dict().items()}
            if self.compile is not as_it_is and isinstance(m, nn.Module) and hasattr(m, "_orig_mod"):
                m.load_state_dict(prefixed)
            call()

        def on_meta() -> bool:  # partly: torch computes with such a module, from memory that nobody wrote
            return any(t.is_meta for t in (*m.parameters(), *m.buffers()))

        if self.attempt(f"{what} asked for its state", on_meta):
            self.found.append("on meta")
            return
        for use, function in zip(USES, (call, train, state), strict=True):
            self.attempt(f"{what} {use}", function)


def as_it_is(m: nn.Module) -> nn.Module:
    return m


def differ(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            return True
        return not a.is_meta and not torch.allclose(a, b, 1e-4, 1e-5, equal_nan=True)
    if type(a) is not type(b):
        return True
    if isinstance(a, (list, tuple)):
        return len(a) != len(b) or any(map(differ, a, b))
    if isinstance(a, dict):
        return list(a) != list(b) or any(differ(a[k], b[k]) for k in a)
    if isinstance(a, str) and a.endswith(": RecursionError"):  # where the stack ends is nobody's promise
        return a.partition(": ")[0] != b.partition(": ")[0]
    return a != b


def short(value: Any) -> str:
    return " ".join(repr(value).split())[:250]


def check(kind: Kind, acts: list[str], when: str, place: str, backend: str) -> list[str]:
    """What differs between the compiled module's way and the ordinary one's."""
    outcomes = []
    for compile_ in (as_it_is, lambda m: flashover.compile(m, backend=backend)):
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcomes.append(World(kind, when, place, compile_).run(acts))
    wrong = [f"{short(a)} but compiled {short(b)}" for a, b in zip(*outcomes, strict=False) if differ(a, b)]
    if not wrong and len(outcomes[0]) != len(outcomes[1]):
        wrong = [f"{len(outcomes[0])} findings but compiled {len(outcomes[1])}"]
    return wrong


Cell = tuple[Kind, list[str], str, str]


def cells(big: bool = False) -> list[Cell]:
    """The matrix, and after it the sequences that a seed stands for."""
    return [
        (kind, [name], when, place)
        for kind in KINDS.values()
        if big or not kind.big
        for name in ACTS
        for when in WHEN
        for place in PLACES
    ]


def sequence(seed: int, quick: list[str]) -> Cell:
    r = random.Random(seed)
    kinds = [k for k in KINDS.values() if not k.big]
    return r.choice(kinds), r.choices(quick, k=r.randint(2, 4)), r.choice(WHEN), r.choice(PLACES)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--act")
    parser.add_argument("--kind")
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    matrix = cells(big=True)
    if options.act or options.kind:
        matrix = [c for c in matrix if options.act in (None, c[1][0]) and options.kind in (None, c[0].name)]
        options.count = options.count or len(matrix)
    quick = [name for name in ACTS if name not in SLOW]
    end, done, found = time.monotonic() + options.seconds, 0, 0
    while time.monotonic() < end and (options.count is None or done < options.count):
        at = options.start + done
        kind, acts, when, place = matrix[at] if at < len(matrix) else sequence(at, quick)
        done += 1
        wrong = check(kind, acts, when, place, options.backend)
        found += bool(wrong)
        for text in wrong[: None if options.v else 1]:
            print(f"{at}: {kind.name}, {' + '.join(acts)}, {when}, {place}: {text}", flush=True)
    print(f"{done} cells x {len(USES)} uses of {len(matrix)} in the matrix, {found} cells differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
