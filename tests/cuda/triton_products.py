"""Products with what follows them in one kernel: programs for Triton's interpreter.

`python triton_products.py` runs all (TRITON_INTERPRET=1) and prints one JSON object: name -> [what is wrong or null,
how many products were fused]."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

PROGRAMS: dict[str, tuple[Callable[..., Any], list[torch.Tensor], list[int]]] = {}
torch.manual_seed(0)
TILE = [32, 32, 16]


def f16(*sizes: int) -> torch.Tensor:  # (the interpreter multiplies the bits of bf16)
    return torch.randn(*sizes).half()


def add(name: str, function: Callable[..., Any], *args: torch.Tensor, tile: list[int] | None = None) -> None:
    PROGRAMS[name] = (function, list(args), tile or TILE)


def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    return F.linear(x, w, b)


add("gelu", lambda x, w, b: F.gelu(linear(x, w, b)), f16(64, 48), f16(96, 48), f16(96))
add("relu and more", lambda x, w, b: F.relu(linear(x, w, b)) * 2 + 1, f16(64, 32), f16(64, 32), f16(64))
add("no bias, silu", lambda x, w: F.silu(linear(x, w)), f16(40, 32), f16(64, 32))
add("odd sizes", lambda x, w, b: F.gelu(linear(x, w, b)), f16(37, 29), f16(51, 29), f16(51))
add("one row", lambda x, w, b: torch.sigmoid(linear(x, w, b)), f16(1, 40), f16(33, 40), f16(33))
add("residual", lambda x, w, b, r: linear(x, w, b) + r, f16(64, 32), f16(48, 32), f16(48), f16(64, 48))
add("residual in f32", lambda x, w, b, r: r + linear(x, w, b), f16(33, 32), f16(48, 32), f16(48), torch.randn(33, 48))
add("a row for all", lambda x, w, s: linear(x, w) * s, f16(36, 32), f16(50, 32), f16(50))
add("a column for all", lambda x, w, s: linear(x, w) * s, f16(36, 32), f16(50, 32), f16(36, 1))
add("batch", lambda x, w, b: F.gelu(linear(x, w, b)), f16(3, 7, 32), f16(40, 32), f16(40))
add("batch with a row for each", lambda x, w, s: linear(x, w) + s, f16(3, 7, 32), f16(40, 32), f16(3, 1, 40))
add("two results", lambda x, w: (torch.exp(h := linear(x, w)), h.float() * 3), f16(35, 32), f16(33, 32))
add("gate", lambda x, w, v: F.silu(linear(x, w)) * linear(x, v), f16(33, 32), f16(40, 32), f16(40, 32))
add("two layers", lambda x, w, v: F.relu(F.gelu(linear(x, w)) @ v) + 1, f16(33, 32), f16(40, 32), f16(40, 16))
add("transposed", lambda x, w: F.gelu(x.t() @ w), f16(32, 40), f16(32, 24))
add("a long sum", lambda x, w: torch.tanh((x @ w) / 30), f16(16, 1000), f16(1000, 16), tile=[16, 16, 64])
add("many programs", lambda x, w: F.relu(x @ w) + 1, f16(200, 16), f16(16, 150), tile=[16, 16, 16])
add("mixed", lambda x, w, b: (x @ w).float() * b, f16(33, 20), f16(20, 40), torch.randn(40))
NAN = torch.full((4, 16), torch.nan).half()
add("not a number", lambda x, w, b: F.relu(linear(x, w, b)) + 1, NAN, f16(16, 16), f16(16))
# Not fused: several readers, reductions, other places, other types.
add("returned too", lambda x, w: (F.gelu(h := linear(x, w)), h), f16(33, 32), f16(40, 32))
add("reduced", lambda x, w: linear(x, w).softmax(-1), f16(33, 32), f16(40, 32))
add("turned", lambda x, w: linear(x, w).t().contiguous() + 1, f16(33, 32), f16(40, 32))
add("flipped", lambda x, w: linear(x, w).flip(0) * 2, f16(33, 32), f16(40, 32))
add("f32", lambda x, w: F.gelu(linear(x, w)), torch.randn(33, 32), torch.randn(40, 32))
add("scaled", lambda b, x, w: torch.addmm(b, x, w, alpha=0.5) * 2, f16(40), f16(33, 32), f16(32, 40))


def overwritten(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = linear(x, w)
    x.zero_()
    return F.gelu(h)


add("operand overwritten", overwritten, f16(33, 32), f16(40, 32))


# ---- kernels before the product, products of batches
add("silu before", lambda x, w, b: linear(F.silu(x), w, b), f16(37, 48), f16(51, 48), f16(51))
add("before and behind", lambda x, w, b: F.gelu(linear(F.silu(x) * 2, w, b)), f16(64, 48), f16(51, 48), f16(51))
add("a cast before", lambda x, w: F.relu(x.half() @ w.half()) + 1, torch.randn(37, 29), torch.randn(29, 33))
add("a gate before", lambda g, u, w: linear(F.silu(g) * u, w), f16(3, 7, 32), f16(3, 7, 32), f16(40, 32))
add("half of a row before", lambda h, w: linear(F.gelu(h[:, 32:]) * h[:, :32], w), f16(33, 64), f16(40, 32))
SMALL = torch.randint(-9, 9, (48, 40)).to(torch.int8)
add("small weights", lambda x, w, s: x @ (w * s).to(x.dtype).t(), f16(33, 40), SMALL, torch.rand(48, 1))
add(
    "a row's scale before",
    lambda x, s, w: (x * s).to(w.dtype) @ w.t(),
    torch.randn(33, 40),
    torch.randn(33, 1),
    f16(48, 40),
)
add("turned before", lambda x, w: (x.exp()).t() @ w, f16(40, 33) / 4, f16(40, 24))
add("exponential of nothing", lambda x, w: linear(torch.exp(x), w) + 1, f16(20, 21), f16(24, 21))
add("batched", lambda a, b: F.gelu(a @ b), f16(3, 33, 20), f16(3, 20, 40))
add("batched, several axes", lambda a, b: torch.tanh(a @ b) + a.sum(), f16(2, 3, 17, 20), f16(2, 3, 20, 18))
add(
    "batched scores",
    lambda q, k, m: torch.bmm(q, k.transpose(1, 2)) * 0.125 + m,
    f16(4, 33, 16),
    f16(4, 20, 16),
    f16(33, 20),
)
add("batched before", lambda a, b, s: torch.bmm(F.relu(a) * s, b), f16(3, 33, 20), f16(3, 20, 40), f16(3, 1, 1))
add("batched before and behind", lambda a, b: F.silu(torch.bmm(a.exp(), b.cos())), f16(3, 17, 20) / 4, f16(3, 20, 24))
add("read twice", lambda x, w, v: (linear((h := F.silu(x)), w), linear(h, v)), f16(33, 32), f16(40, 32), f16(24, 32))


def check(name: str) -> tuple[str | None, int]:
    """All the ways that differ."""
    seen: dict[str, int] = {}
    for way in range(3):
        problem, fused, texts = check_way(name, way)
        if problem:
            return f"way {way}: {problem}", fused
        seen[texts] = fused
    return None, max(seen.values())


def check_way(name: str, way: int) -> tuple[str | None, int, str]:
    from trace_tools import Program, tensors_of, trace
    from triton_tools import Runner

    from flashover import _C

    function, args, tile = PROGRAMS[name]
    given = [a.clone() for a in args]
    traced = trace(Program(function, given))
    program = _C.triton_program(traced.text, processors=8, tile=tile, way=way)
    texts = "\n".join(k["text"] for k in program["kernels"])
    fused = sum(k["name"].startswith(("mm_", "addmm_", "bmm_", "of_")) for k in program["kernels"])
    after = [a.clone() for a in args]
    expected = tensors_of(function(*after))
    exact = tensors_of(function(*[a.double() for a in args]))
    try:
        got = Runner(program).run(list(traced.inputs))
    except Exception:
        return traceback.format_exc() + texts, fused, texts
    for i, (a, b, c) in enumerate(zip(got, expected, exact, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{i}: {a.dtype} {tuple(a.shape)} for {b.dtype} {tuple(b.shape)}", fused, texts
        if bool((a.isnan() != b.isnan()).any()):
            return f"{i}: NaN at other places", fused, texts
        off, own = (float((t.double() - c).nan_to_num().norm()) for t in (a, b))
        if off > 1.5 * own + 1e-3 * float(c.nan_to_num().norm()):
            return f"{i}: off by {off}, eager by {own}\n" + texts, fused, texts
    for a, b in zip(given, after, strict=True):
        if not torch.equal(a.nan_to_num(), b.nan_to_num()):
            return "an argument was left different", fused, texts
    return None, fused, texts


if __name__ == "__main__":
    result = {}
    for n in sys.argv[1:] or list(PROGRAMS):
        try:
            result[n] = check(n)
        except Exception:
            result[n] = (traceback.format_exc(), -1)
    print("RESULT" + json.dumps(result))
