"""Random tensor programs, compiled against eager: `./x fuzz 600` by hand, a fixed-seed slice in CI (test_fuzz.py).

A program is a list of lines over a pool of tensors: pointwise, reductions, views, indexing, cat, matmul, norm, softmax, in-place
writes through views, over inputs that may be non-contiguous, stride-0, empty, 0-d, integer, bool, half precision. It is compiled as
Python source, so the whole path is exercised: capture, trace, functionalize, fuse, run. Compared elementwise with an
fp64 run of the same program as the arbiter: outputs, mutated inputs, dtypes, strides, aliasing with the inputs.
"""

from __future__ import annotations

import argparse
import linecache
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

FLOATS = [torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16]
UNARY = [
    "torch.relu({a})", "torch.sigmoid({a})", "torch.tanh({a})", "torch.exp({a}.clamp(max=4))", "{a}.abs().sqrt()", "torch.neg({a})",
    "torch.nn.functional.gelu({a})", "torch.nn.functional.silu({a})", "torch.nn.functional.gelu({a}, approximate='tanh')",
    "{a} * 2.5", "{a} + 1", "1 - {a}", "{a}.clamp(-1, 1)", "torch.sin({a})", "torch.erf({a})", "{a}.square()", "torch.log1p({a}.abs())",
    "torch.nn.functional.leaky_relu({a}, 0.1)", "torch.nn.functional.hardswish({a})", "torch.nn.functional.softplus({a})",
    "torch.where({a} > 0, {a}, {a} * 0.1)", "{a}.float()", "{a}.to({a}.dtype)", "torch.rsqrt({a}.abs() + 1)", "{a} / 3", "{a}.cos()",
    "torch.floor({a})", "torch.round({a})", "{a}.sign()", "torch.reciprocal({a}.abs() + 1)", "torch.nan_to_num({a})",
]  # fmt: skip
BINARY = ["{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / ({b}.abs() + 1)", "torch.maximum({a}, {b})", "torch.minimum({a}, {b})",
          "torch.where({a} > {b}, {a}, {b})", "torch.lerp({a}.float(), {b}.float(), 0.3)", "{a} + {b} * 0.5", "torch.add({a}, {b}, alpha=2)",
          "({a} > {b}).to({a}.dtype)", "torch.atan2({a}.float(), {b}.float() + 3)"]  # fmt: skip
REDUCE = ["{a}.sum({d})", "{a}.mean({d})", "{a}.amax({d}, keepdim=True)", "{a}.float().var({d}, correction=0)", "{a}.sum({d}, keepdim=True)",
          "torch.softmax({a}.float(), {d})", "torch.log_softmax({a}.float(), {d})", "{a}.float().cumsum({d})", "{a}.argmax({d}).to({a}.dtype)",
          "{a}.max({d})[0]", "torch.logsumexp({a}.float(), {d})", "{a}.float().norm(dim={d})", "({a} > 0).any({d})",
          "torch.nn.functional.layer_norm({a}.float(), ({a}.shape[-1],))"]  # fmt: skip
VIEWS = ["{a}.transpose({d}, {e})", "{a}.flatten()", "{a}.unsqueeze({d})", "{a}.flip({d})", "{a}.reshape(-1)", "{a}.narrow({d}, 0, ({n} + 1) // 2)",
         "torch.cat([{a}, {a}], {d})", "torch.stack([{a}, {a} * 2], {d})", "{a}.repeat_interleave(2, {d})", "{a}.roll(1, {d})",
         "torch.nn.functional.pad({a}, (1, 2))", "{a}.select({d}, 0)", "{a}.contiguous()", "{a}.clone()", "{a}[..., ::2]", "{a}.movedim({d}, {e})",
         "{a}.expand(2, *{a}.shape)", "{a}.tril() if {a}.dim() > 1 else {a}", "{a}.unbind({d})[0]", "{a}.chunk(2, {d})[0]",
         "{a}.index_select({d}, torch.tensor([0]))", "{a}.unfold({d}, 1, 1)", "{a}.diagonal() if {a}.dim() > 1 else {a}"]  # fmt: skip
INPLACE = ["{a}.add_(1)", "{a}.mul_(0.5)", "{a}.relu_()", "{a}[..., 0] = 0", "{a}.copy_({a} * 2)", "{a}.clamp_(min=-1)", "{a}.select({d}, 0).fill_(2)",
           "{a}.transpose({d}, {e}).add_(0.5)", "{a}.zero_()", "{a}.masked_fill_({a} > 1, 0)", "{a}.view(-1)[0:1] = 3"]  # fmt: skip


# Where a rounding may decide.
DISCONTINUOUS = ("floor", "round", "sign", "arg", " > ", "unique")


@dataclass
class Program:
    source: str
    make_inputs: Callable[[], list[torch.Tensor]]
    seed: int
    lines: list[str] = field(default_factory=list)

    def function(self, exact: bool = False) -> Callable[..., Any]:
        """exact: for fp64 inputs, f32 in the program is f64 too."""
        name = f"<fuzz {self.seed}{' exact' if exact else ''}>"
        source = self.source.replace(".float()", ".double()") if exact else self.source
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        scope: dict[str, Any] = {"torch": torch}
        exec(compile(source, name, "exec"), scope)
        return scope["program"]


def make_input(rng: random.Random, generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    rank = rng.choice([0, 1, 2, 2, 3, 3, 4])
    sizes = [rng.choice([1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64, 0 if rng.random() < 0.05 else 6]) for _ in range(rank)]
    x = torch.randn(sizes, generator=generator, dtype=torch.float64).to(dtype)
    form = rng.random()
    if form < 0.15 and rank >= 2:
        return x.transpose(0, -1)
    if form < 0.25 and rank >= 1:
        return torch.cat([x, x], -1)[..., ::2]
    if form < 0.32 and rank >= 1 and sizes[0] == 1:
        return x.expand(4, *sizes[1:])
    if form < 0.38 and rank == 4:
        return x.to(memory_format=torch.channels_last)
    return x


def generate(seed: int) -> Program:
    """A program that eager runs: lines that raise are dropped as they are made."""
    rng = random.Random(seed)
    dtype = rng.choice(FLOATS)
    count = rng.randint(1, 3)

    def inputs(as_dtype: torch.dtype | None = None) -> list[torch.Tensor]:
        r, g = random.Random(seed + 1), torch.Generator().manual_seed(seed)
        made = [make_input(r, g, dtype) for _ in range(count)]
        return made

    pool = {f"x{i}": x for i, x in enumerate(inputs())}
    lines: list[str] = []
    scope: dict[str, Any] = {"torch": torch}
    for step in range(rng.randint(2, 14)):
        kind = rng.choices([UNARY, BINARY, REDUCE, VIEWS, INPLACE, ["matmul"]], [30, 22, 14, 22, 7, 5])[0]
        names = list(pool)
        a, b = rng.choice(names), rng.choice(names)
        dim = max(pool[a].dim(), 1)
        d, e = rng.randrange(dim), rng.randrange(dim)
        template = rng.choice(kind)
        if template == "matmul":
            template = "{a}.float() @ {a}.float().transpose(-1, -2)" if pool[a].dim() > 1 else "{a} * 1"
        n = pool[a].shape[d] if pool[a].dim() else 1
        text = template.format(a=a, b=b, d=d, e=e, n=n)
        statement = kind is INPLACE
        if statement and (0 in pool[a].stride() or not pool[a].is_floating_point()):
            continue
        line = text if statement else f"t{step} = {text}"
        saved = {k: v.clone() for k, v in pool.items()} if statement else {}
        try:
            local = dict(scope) | pool
            exec(line, local)
            made = pool[a] if statement else local[f"t{step}"]
            if not isinstance(made, torch.Tensor) or made.numel() > 200_000:
                continue
        except (RuntimeError, IndexError, TypeError, ValueError):
            for k, v in saved.items():
                if 0 not in pool[k].stride():
                    pool[k].copy_(v)
            continue
        if not statement:
            pool[f"t{step}"] = made
        lines.append(line)
    results = [n for n in pool if n.startswith("t")][-3:] or ["x0 + 0"]
    body = "".join(f"    {line}\n" for line in lines)
    source = f"def program({', '.join(f'x{i}' for i in range(count))}):\n{body}    return ({', '.join(results)},)\n"
    return Program(source, inputs, seed, lines)


def geometry(t: torch.Tensor) -> tuple[object, ...]:
    return (t.dtype, t.shape) + ((t.stride(), t.storage_offset()) if t.numel() > 1 else ())


def same_up_to_rounding(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, eps: float) -> str:
    """'' when got is as near to the fp64 run as eager is, within a factor and a floor; else what differs.

    eps: of the least precise numbers on the way."""
    if geometry(got) != geometry(eager):
        return f"geometry {geometry(got)} against {geometry(eager)}"
    if not eager.is_floating_point():
        return "" if torch.equal(got, eager) else "integer values differ"
    a, b, x = got.double(), eager.double(), exact.double()
    special = ~torch.isfinite(b) | ~torch.isfinite(x)
    agree = (a == b) | (a.isnan() & b.isnan())
    ordinary = ~special
    scale = x[ordinary].abs().max().item() if bool(ordinary.any()) else 0.0
    bound = 2 * (b - x).abs() + 16 * eps * (x.abs() + scale * 0.05) + 1e-30
    wrong = ~agree & ((a - x).abs() > bound) & ordinary | special & ~agree & ~((a - b).abs() <= 16 * eps * b.abs())
    if eps > 1e-4:  # 16 roundings are much there; and f16 overflows in eager where f32 between operators does not
        wrong &= ordinary | ~torch.isfinite(x)
        ours, theirs = (a - x)[ordinary].norm().item(), (b - x)[ordinary].norm().item()
        if ours > 2 * theirs + 2 * eps * x[ordinary].norm().item():
            return f"error {ours} against eager's {theirs}"
    if not bool(wrong.any()):
        return ""
    i = int(wrong.flatten().nonzero()[0])
    return f"{int(wrong.sum())} of {a.numel()} values: {a.flatten()[i]} against eager {b.flatten()[i]}, fp64 {x.flatten()[i]}"


def half_precision(program: Program) -> bool:
    return any(x.dtype in (torch.float16, torch.bfloat16) for x in program.make_inputs())


def discontinuous(program: Program) -> bool:
    """Steps at which a rounding difference may become a different value: eager itself is the reference."""
    return any(word in program.source for word in DISCONTINUOUS)


def run_one(program: Program, compile_fn: Callable[..., Any]) -> str:
    """'' or what is wrong with the compiled program. 16-bit programs whose values jump are run with every rounding kept."""
    function, exact_function = program.function(), program.function(exact=True)
    eager_in, fast_in = program.make_inputs(), program.make_inputs()
    exact_in = [x.double() if x.is_floating_point() else x for x in program.make_inputs()]
    precisions = [x.dtype for x in eager_in if x.is_floating_point()] + [torch.float32] * (".float()" in program.source)
    eps = max(torch.finfo(d).eps for d in precisions) if precisions else 2.0**-52
    jumps = discontinuous(program)
    options = {"options": {"strict_numerics": True}} if jumps and half_precision(program) else {}
    with torch.no_grad():
        eager = function(*eager_in)
        try:
            exact = exact_function(*exact_in)
        except RuntimeError:
            exact, exact_in = eager, eager_in
        if jumps or any(e.shape != x.shape for e, x in zip(eager, exact, strict=True)):
            exact, exact_in = eager, eager_in
        got = compile_fn(function, **options)(*fast_in)
    for i, (g, e, x) in enumerate(zip(got, eager, exact, strict=True)):
        if problem := same_up_to_rounding(g, e, x, eps):
            return f"output {i}: {problem}"
        if sharing(e, [*eager_in, *eager]) != sharing(g, [*fast_in, *got]):
            return (
                f"output {i}: shares memory with {sharing(g, [*fast_in, *got])}, not {sharing(e, [*eager_in, *eager])}"
            )
    for j, (f, o, x) in enumerate(zip(fast_in, eager_in, exact_in, strict=True)):
        if problem := same_up_to_rounding(f, o, x, eps):
            return f"input {j} after the call: {problem}"
    return ""


def sharing(t: torch.Tensor, others: list[torch.Tensor]) -> list[int]:
    if t.numel() == 0:
        return []
    return [
        i
        for i, o in enumerate(others)
        if o.numel() and o.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()
    ]


def main() -> int:
    import flashover

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, help="run this one seed and print the program")
    options = parser.parse_args()
    seeds = iter([options.only]) if options.only is not None else iter(range(options.seed, options.seed + 10**9))
    end, done, failed = time.time() + options.seconds, 0, 0
    for seed in seeds:
        program = generate(seed)
        if options.only is not None:
            print(program.source, [(x.dtype, x.shape, x.stride()) for x in program.make_inputs()])
        try:
            problem = run_one(program, flashover.compile)
        except Exception as failure:  # a crash of the compiled program is a finding like any other
            problem = f"{type(failure).__name__}: {failure}"
        done += 1
        if problem:
            failed += 1
            print(f"seed {seed}: {problem}\n{program.source}", flush=True)
        flashover.reset()
        if time.time() > end:
            break
    print(f"{done} programs, {failed} wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
