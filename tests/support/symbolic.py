"""Graph texts over size symbols, made from programs traced at several sizes: numbers that move become expressions."""

import itertools
import re
from collections.abc import Callable, Sequence

import torch

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
