"""Graph texts over size symbols, made from programs traced at several sizes: numbers that move become expressions."""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flashover import _C

NUMBER = re.compile(r"(?<![\w.%])-?\d+(?![\w.])")
# By symbol: what programs are traced at. Primes far from other numbers.
SAMPLES = ((97, 101, 211), (89, 83, 223))


class NotAffineError(Exception):
    """A number of the trace is no a*s0*s1 + b*s0 + c*s1 + d."""


def traced(fn: Callable, inputs: Sequence[tuple[str, torch.Tensor]]) -> str:
    """The graph of a call, as text. inputs: kind and tensor."""

    def run() -> list[torch.Tensor]:
        out = fn(*(t for _, t in inputs))
        return [out] if isinstance(out, torch.Tensor) else list(out)

    with torch.no_grad():
        return _C.trace_function(run, [(f"x{i}", kind, t) for i, (kind, t) in enumerate(inputs)]).text


def expression(values: dict[tuple[int, ...], int], symbols: int) -> str:
    """The polynomial, linear in each symbol, that takes these values at the first two samples of each."""
    at = [SAMPLES[k][:2] for k in range(symbols)]
    terms: list[tuple[int, str]] = []
    # Differences divided by steps, one symbol after the other.
    for chosen in itertools.product((False, True), repeat=symbols):
        total = 0
        scale = 1
        for corner in itertools.product((0, 1), repeat=symbols):
            weight = 1
            for k in range(symbols):
                low, high = at[k]
                if chosen[k]:
                    weight *= 1 if corner[k] else -1
                else:
                    weight *= -low if corner[k] else high
            total += weight * values[tuple(at[k][corner[k]] for k in range(symbols))]
        for k in range(symbols):
            scale *= at[k][1] - at[k][0]
        if total % scale:
            raise NotAffineError(str(values))
        name = "*".join(f"s{k}" for k in range(symbols) if chosen[k])
        if total // scale:
            terms.append((total // scale, name))
    parts = [(f"{c}*{name}" if c != 1 else name) if name else str(c) for c, name in terms]
    text = " + ".join(parts).replace("+ -", "- ") or "0"
    for sizes, value in values.items():
        if eval(text, {}, {f"s{k}": n for k, n in enumerate(sizes)}) != value:
            raise NotAffineError(f"{text} at {sizes} is not {value}")
    return text


def symbolic_graph(fn: Callable, make: Callable, symbols: int) -> str:
    """fn's graph with symbols where its inputs make(s0, s1, ...) and everything after them depends on the sizes."""
    samples = [*itertools.product(*(SAMPLES[k][:2] for k in range(symbols))), tuple(s[2] for s in SAMPLES[:symbols])]
    texts = {sizes: traced(fn, make(*sizes)) for sizes in samples}
    first = texts[samples[0]]
    shape = NUMBER.sub("#", first)
    if any(NUMBER.sub("#", t) != shape for t in texts.values()):
        raise NotAffineError("the programs differ")
    numbers = {sizes: [int(n) for n in NUMBER.findall(t)] for sizes, t in texts.items()}
    out, at = [], 0
    for i, match in enumerate(NUMBER.finditer(first)):
        values = {sizes: numbers[sizes][i] for sizes in samples}
        moves = len(set(values.values())) > 1
        text = expression(values, symbols) if moves else match.group()
        if moves and first[match.start() - 1] == "+":  # an offset
            text = f"({text})"
        out += [first[at : match.start()], text]
        at = match.end()
    return "".join(out) + first[at:]


SIZES = (0, 1, 2, 3, 7, 8, 16, 31, 64, 100, 1000)
# By the second symbol: not the same as the first, and both orders of magnitude.
PAIRS = (
    (0, 0),
    (0, 6),
    (9, 0),
    (1, 1),
    (1, 6),
    (9, 1),
    (2, 3),
    (3, 2),
    (7, 8),
    (8, 100),
    (16, 16),
    (31, 7),
    (64, 31),
    (100, 64),
    (1000, 2),
    (2, 1000),
)


@dataclass
class Program:
    fn: Callable
    shapes: str  # of the inputs: "s 64; 64 32 param", each with its dtype or kind behind; s, t: symbols
    tolerance: float = 2e-5
    least: int = 0  # size that the graph is right at (the trace's guards leave out others)

    @property
    def symbols(self) -> int:
        return 2 if "t" in self.shapes.replace(";", " ").split() else 1

    def inputs(self, *sizes: int) -> list[tuple[str, Tensor]]:
        made = []
        for shape in self.shapes.split(";"):
            kind, dims, dtype = "user", [], torch.float32
            for word in shape.split():
                if word == "param":
                    kind = word
                elif word == "index":
                    dtype = torch.int64
                elif word == "bool":
                    dtype = torch.bool
                elif word == "bf16":
                    dtype = torch.bfloat16
                else:
                    dims.append(eval(word, {}, {"s": sizes[0], "t": sizes[-1]}))
            if dtype is torch.int64:
                made.append((kind, torch.randint(0, 10, dims)))
            elif dtype is torch.bool:
                made.append((kind, torch.rand(dims) < 0.5))
            else:
                made.append((kind, torch.randn(dims).to(dtype)))
        return made


def at_sizes(sizes: tuple[int, ...]) -> Callable[[str], str]:
    return lambda message: f"at sizes {sizes}: {message}"


def guarded_graph(program: Program) -> str:
    graph = symbolic_graph(program.fn, program.inputs, program.symbols)
    guards = "".join(f"  where {program.least} <= s{k}\n" for k in range(program.symbols) if program.least > 0)
    return graph.replace("graph {\n", "graph {\n" + guards, 1)


def compiled(program: Program) -> _C.CompiledText:
    return _C.compile_text(guarded_graph(program), {"cache": "False"})


def strides_that_count(t: Tensor) -> list[int]:
    """Those over one element are as the graph says them, which is of larger sizes."""
    return [stride for stride, n in zip(t.stride(), t.shape, strict=True) if n > 1 and t.numel() > 0]


def check_at_every_size(program: Program) -> None:
    """One compilation, beside eager at each of many sizes: results, strides, what is written."""
    torch.manual_seed(0)
    executable = compiled(program)
    sizes = [(n,) for n in SIZES] if program.symbols == 1 else PAIRS
    for at in sizes:
        if min(at) < program.least:
            continue
        inputs = [t for _, t in program.inputs(*at)]
        given = [t.clone() for t in inputs]
        want = program.fn(*inputs)
        want = [want] if isinstance(want, Tensor) else list(want)
        got = executable.run(given)
        for g, w in zip(got, want, strict=True):
            assert g.shape == w.shape, f"{at}: {g.shape} is not {w.shape}"
            assert strides_that_count(g) == strides_that_count(w), f"{at}: strides {g.stride()}, not {w.stride()}"
            scale = max(1.0, w.float().abs().max().item()) if w.numel() else 1.0
            torch.testing.assert_close(
                g, w, rtol=program.tolerance, atol=program.tolerance * scale, equal_nan=True, msg=at_sizes(at)
            )
        for g, w in zip(given, inputs, strict=True):
            torch.testing.assert_close(g, w, msg=at_sizes(at))
