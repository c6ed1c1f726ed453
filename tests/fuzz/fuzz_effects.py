"""Random programs with operators that act (log, count, write), compiled against eager:
`python tests/fuzz/fuzz_effects.py --seconds 60`.

Custom operators of all kinds (unknown purity, ORDERED, without results, without tensors, writing an argument, with a
backward that acts itself) among tensor code: results used and unused, the same call twice, calls behind writes, in
checkpoints, under no_grad, with backward and without. What was called, in which order and with which values, must be
what eager calls; results and gradients too. tests/effects/ runs the same over fixed seeds.
"""

from __future__ import annotations

import search_path

import argparse
import random
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._library.effects import EffectType
from torch.utils.checkpoint import checkpoint

Compile = Callable[..., Any]
Log = list[tuple[Any, ...]]
LOG: Log = []


def note(name: str, tag: str, *tensors: torch.Tensor) -> None:
    """What an operator does beside its result."""
    LOG.append((name, tag, *(float(t.detach().double().sum()) for t in tensors)))


def define(name: str, body: Callable[..., Any], mutates: tuple[str, ...] = ()) -> Any:
    """A custom operator; where it returns tensors its result looks like its first argument."""
    op = torch.library.custom_op(f"fuzz_effects::{name}", body, mutates_args=mutates)
    op.register_fake(lambda x, *_: None if body.__annotations__["return"] in (None, "None") else torch.empty_like(x))
    return op


def _plain(x: torch.Tensor, tag: str) -> torch.Tensor:
    note("plain", tag, x)
    return x * 2 + 1


def _ordered(x: torch.Tensor, tag: str) -> torch.Tensor:
    note("ordered", tag, x)
    return x.clone()


def _say(x: torch.Tensor, tag: str) -> None:
    note("say", tag, x)


def _tick(tag: str) -> None:
    note("tick", tag)


def _bump(x: torch.Tensor, tag: str) -> None:
    note("bump", tag, x)
    x.add_(0.5)


def _swap(x: torch.Tensor, y: torch.Tensor, tag: str) -> torch.Tensor:
    note("swap", tag, x, y)
    x.mul_(-1)
    return x + y


def _learned(x: torch.Tensor, y: torch.Tensor, tag: str) -> torch.Tensor:
    note("learned", tag, x, y)
    return x * y


for _f in (_plain, _ordered, _say, _tick, _bump, _swap, _learned):  # custom_op asks for types, not for their names
    _f.__annotations__ = {
        k: {"torch.Tensor": torch.Tensor, "str": str, "None": None}[v] for k, v in _f.__annotations__.items()
    }
plain, ordered, say = define("plain", _plain), define("ordered", _ordered), define("say", _say)
tick = torch.library.custom_op("fuzz_effects::tick", _tick, mutates_args=())
tick.register_fake(lambda tag: None)
bump, swap = define("bump", _bump, ("x",)), define("swap", _swap, ("x",))
learned = define("learned", _learned)
ordered.register_effect(EffectType.ORDERED)


def _ordered_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    return plain(grad, "ordered'"), None


def _plain_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    say(grad, "plain'")
    return grad * 2, None


def _learned_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])


def _learned_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, y = ctx.saved_tensors
    plain(grad, "unused'")
    say(grad * x, "learned'")
    return ordered(grad * y, "learned'"), grad * x, None


ordered.register_autograd(_ordered_backward)
plain.register_autograd(_plain_backward)
learned.register_autograd(_learned_backward, setup_context=_learned_context)

KINDS = [
    "plain",
    "plain",
    "unused",
    "unused",
    "ordered",
    "ordered",
    "say",
    "say",
    "tick",
    "bump",
    "swap",
    "learned",
    "learned",
    "twice",
    "checkpoint",
    "no_grad",
    "sin",
    "add",
    "mul",
    "matmul",
    "slice",
    "relu",
    "inplace",
    "dropped",
    "sum",
]
DIFFERENTIABLE = set(KINDS) - {"bump", "swap"}  # the others write what autograd may need


class Program:
    """Steps over a list of tensors; made from a seed, run by eager and compiled alike."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.grad = self.rng.random() < 0.6
        kinds = [k for k in KINDS if not self.grad or k in DIFFERENTIABLE]
        self.steps = [
            (self.rng.choice(kinds), self.rng.random(), self.rng.random()) for _ in range(self.rng.randint(3, 12))
        ]
        self.inputs = self.rng.randint(1, 3)

    def inside(self, kind: str) -> Callable[[torch.Tensor], torch.Tensor]:
        """The insides of a checkpoint or a no_grad region."""
        acts = kind == "no_grad" or self.rng_inside(kind) < 0.7

        def f(t: torch.Tensor) -> torch.Tensor:
            if acts:
                t = plain(t.sin(), f"in {kind}")
                say(t, f"in {kind}")
            return torch.tanh(t) * t

        return f

    def rng_inside(self, kind: str) -> float:
        return random.Random(f"{len(self.steps)} {kind}").random()

    def step(self, kind: str, x: torch.Tensor, y: torch.Tensor, tag: str) -> torch.Tensor | None:
        """The new tensor, if there is one."""
        match kind:
            case "plain":
                return plain(x, tag)
            case "unused":
                plain(x, tag)
            case "ordered":
                return ordered(x, tag)
            case "dropped":
                ordered(x * y, tag)
            case "say":
                say(x, tag)
            case "tick":
                tick(tag)
            case "bump":
                z = x.clone()
                bump(z, tag)
                return z
            case "swap":
                z = x * 1
                return swap(z, y, tag) + z
            case "learned":
                return learned(x, y, tag)
            case "twice":
                return plain(x, "same") + plain(x, "same")
            case "checkpoint":
                return checkpoint(self.inside(kind), x, use_reentrant=False)
            case "no_grad":
                with torch.no_grad():
                    return self.inside(kind)(x)
            case "sin":
                return x.sin()
            case "add":
                return x + y
            case "mul":
                return x * y
            case "matmul":
                return x @ y
            case "slice":
                return x.flip(0).t()
            case "relu":
                return torch.relu(x)
            case "inplace":
                return (x + 1).mul_(y).clamp_(-2, 2)
            case "sum":
                return x + y.sum(0, keepdim=True)
        return None

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        values = list(inputs)
        for i, (kind, a, b) in enumerate(self.steps):
            x, y = values[int(a * len(values))], values[int(b * len(values))]
            made = self.step(kind, x, y, f"{i}")
            if made is not None:
                values.append(torch.tanh(made))
        return values[len(inputs) :][-2:] or [values[0] * 1]


def run(function: Callable[..., Any], program: Program, seed: int) -> tuple[Log, list[torch.Tensor]]:
    """The log, and results with gradients."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(3, 3, generator=generator).requires_grad_(program.grad) for _ in range(program.inputs)]
    LOG.clear()
    results = function(*inputs)
    out = [r.detach().clone() for r in results]
    wanted = [r for r in results if r.requires_grad]
    if wanted:
        sum(r.sum() * (i + 1) for i, r in enumerate(wanted)).backward()  # type: ignore[union-attr]
        out += [i.grad.clone() if i.grad is not None else torch.zeros(0) for i in inputs]
    return list(LOG), out


def difference(a: Log, b: Log) -> str:
    """Where two logs part; empty if they do not."""
    for i, (p, q) in enumerate(zip(a, b, strict=False)):
        close = len(p) == len(q) and all(abs(x - y) <= 1e-3 * (1 + abs(x)) for x, y in zip(p[2:], q[2:], strict=True))
        if p[:2] != q[:2] or not close:
            return f"call {i}: eager {p}, compiled {q}"
    return "" if len(a) == len(b) else f"eager makes {len(a)} calls {a}, compiled {len(b)} {b}"


def run_one(seed: int, compile: Compile) -> str:
    """What is wrong with the program of this seed; empty: nothing."""
    program = Program(seed)
    compiled = compile(lambda *inputs: program(*inputs))
    for call in range(3):
        log, wanted = run(program, program, seed + call)
        its_log, got = run(compiled, program, seed + call)
        if problem := difference(log, its_log):
            return f"call {call}: {problem}"
        for i, (a, b) in enumerate(zip(wanted, got, strict=True)):
            if a.shape != b.shape or not torch.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True):
                return f"call {call}: result {i}: eager {a}, compiled {b}"
    return ""


def main() -> int:
    """Runs programs until the time or the count is up."""
    import flashover

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--start", "--seed", type=int, default=int(time.time()), help="the first seed")
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    end, done, failed = time.time() + options.seconds, 0, 0
    seed = options.start if options.only is None else options.only
    while True:
        try:
            problem = run_one(seed, flashover.compile)
        except Exception as failure:
            problem = f"{type(failure).__name__}: {failure}"
        done += 1
        if problem:
            failed += 1
            program = Program(seed)
            print(f"seed {seed}: {problem}\n  grad {program.grad} {[s[0] for s in program.steps]}", flush=True)
        flashover.reset()
        seed += 1
        if options.only is not None or time.time() > end or done >= options.count:
            break
    stats = flashover.compile_stats()
    print(f"{done} programs, {failed} wrong; {stats['graphs']} graphs, {stats['graph_breaks']} breaks")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
