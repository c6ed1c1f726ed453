"""flex_attention's kernels: programs for Triton's interpreter.

`python triton_flex.py [name ...]` runs them (TRITON_INTERPRET=1) and prints one JSON object: name -> what is wrong or
null."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
from flex_programs import PROGRAMS, Program, Sizes, block_mask, moved_into

Tensor = torch.Tensor


def operands(s: Sizes, dtype: torch.dtype, width: int = 16, value_width: int = 16, group: int = 1) -> list[Tensor]:
    q = torch.randn(s.batch, s.queries, s.heads, width).to(dtype).transpose(1, 2)
    k, v = (torch.randn(s.batch, s.heads // group, s.keys, w).to(dtype) for w in (width, value_width))
    return [q, k, v]


def definition(q: Tensor, k: Tensor, v: Tensor, score: Any, mask: Any, scale: float, *buffers: Any) -> Any:
    """torch's own."""
    from torch._higher_order_ops.flex_attention import math_attention

    return math_attention(q, k, v, score, tuple(mask), scale, {}, *buffers)


def function(p: Program, mask: Any, scale: float = 0.25) -> tuple[Callable[..., Any], list[Tensor]]:
    """As the interpreter of frames calls it, over (q, k, v, *lists of blocks, *tensors of the program)."""
    from torch._dynamo import _trace_wrapped_higher_order_op as wrapped
    from torch.nn.attention.flex_attention import _create_empty_block_mask, _identity

    from flashover import _C
    from flashover._substitutes import _flex_attention, _mod_index

    wrapped.mod_index = lambda tensor, indices: _mod_index(None, tensor, indices)

    lists = [] if mask is None else [t for t in mask.as_tuple()[2:6] if t is not None]

    def f(q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Any:
        whole = list((mask or _create_empty_block_mask(q, k)).as_tuple())
        whole[2 : 2 + len(lists)] = rest[: len(lists)]
        with moved_into(p, rest[len(lists) :]) as read:
            whole[-1] = read.mask_mod or whole[-1]
            score = read.score_mod or _identity
            run = _flex_attention if _C.is_trace_tensor(q) else definition
            return run(q, k, v, score, whole, scale, (), ())

    return f, [*lists, *p.tensors]


def case(name: str, s: Sizes, dtype: torch.dtype, block: int = 32, **widths: int) -> tuple[Any, list[Tensor]]:
    p = PROGRAMS[name](s)
    f, rest = function(p, block_mask(p, s, block))
    return f, [*operands(s, dtype, **widths), *rest]


def backward(name: str, s: Sizes, dtype: torch.dtype, block: int = 32, **widths: int) -> tuple[Any, list[Tensor]]:
    """The gradients of queries, keys and values."""
    p = PROGRAMS[name](s)
    f, rest = function(p, block_mask(p, s, block))

    def gradients(q: Tensor, k: Tensor, v: Tensor, weight: Tensor, of_lse: Tensor, *rest: Tensor) -> Any:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out, lse, _ = f(*leaves, *rest)
        lse = torch.where(lse == -torch.inf, 0, lse)
        return torch.autograd.grad([out, lse], leaves, [weight, of_lse])

    args = operands(s, dtype, **widths)
    weight = torch.randn(s.batch, s.heads, s.queries, args[2].shape[-1]).to(dtype)
    return gradients, [*args, weight, torch.randn(s.batch, s.heads, s.queries) * 0.1, *rest]


CASES: dict[str, Callable[[], tuple[Any, list[Tensor]]]] = {}
for n in PROGRAMS:
    CASES[f"{n} f32"] = lambda n=n: case(n, Sizes(2, 2, 64, 64), torch.float32)
    CASES[f"{n} f16 odd"] = lambda n=n: case(n, Sizes(2, 2, 43, 71), torch.float16)
CASES["groups"] = lambda: case("combined", Sizes(2, 4, 40, 50), torch.float16, group=2)
CASES["widths"] = lambda: case("causal", Sizes(1, 2, 40, 50), torch.float16, width=24, value_width=9)
CASES["one query"] = lambda: case("alibi", Sizes(2, 2, 1, 90), torch.float16)
CASES["large blocks"] = lambda: case("window", Sizes(1, 1, 200, 200), torch.float16, block=128)


for n in PROGRAMS:
    CASES[f"backward {n} f32"] = lambda n=n: backward(n, Sizes(1, 2, 64, 64), torch.float32)
    CASES[f"backward {n} f16 odd"] = lambda n=n: backward(n, Sizes(2, 2, 43, 71), torch.float16)
CASES["backward, groups"] = lambda: backward("combined", Sizes(2, 4, 40, 50), torch.float16, group=2)
CASES["backward, groups, no mask"] = lambda: backward("alibi", Sizes(1, 4, 40, 50), torch.float16, group=4)
CASES["backward, widths"] = lambda: backward("causal", Sizes(1, 2, 40, 50), torch.float16, width=24, value_width=9)
CASES["backward, large blocks"] = lambda: backward("window", Sizes(1, 1, 200, 200), torch.float16, block=128)


def check(name: str) -> str | None:
    from trace_tools import Program as Traced
    from trace_tools import tensors_of, trace
    from triton_tools import Runner

    from flashover import _C

    f, args = CASES[name]()
    traced = trace(Traced(f, args))
    program = _C.triton_program(traced.text, processors=8)
    texts = "\n".join(k["text"] for k in program["kernels"])
    fused = sum(k["name"].startswith("k_flex_attention") for k in program["kernels"])
    calls = [s["op"] for s in program["steps"] if s["kind"] == "call"]
    if fused != (4 if name.startswith("backward") else 1) or calls:
        return f"{fused} kernels and {calls}\n" + traced.text
    pairs = [args[0].shape[2], args[1].shape[2]]  # what there is for each of these lies nowhere
    if any(t["storage"] != "input" and t["sizes"][-2:] == pairs for t in program["tensors"]):
        return "scores lie in memory\n" + traced.text
    expected = tensors_of(f(*args))
    exact = tensors_of(f(*[a.double() if a.is_floating_point() else a for a in args]))
    try:
        got = Runner(program).run(list(traced.inputs))
    except Exception:
        return traceback.format_exc() + texts
    for i, (a, b, c) in enumerate(zip(got, expected, exact, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:  # (torch's own lays out its result elsewhere)
            return f"{i}: {a.dtype} {tuple(a.shape)} for {b.dtype} {tuple(b.shape)}"
        if not torch.equal(a.isinf(), b.isinf()) or bool(a.isnan().any()):
            return f"{i}: infinite, or not a number, elsewhere\n" + texts
        off, own = ((t.double() - c).nan_to_num(0, 0, 0).abs().max() for t in (a, b))
        if off > 2 * own + 8 * torch.finfo(a.dtype).eps * c.nan_to_num(0, 0, 0).abs().max():
            return f"{i}: off by {off}, eager by {own}\n" + texts
    return None


if __name__ == "__main__":
    out = {}
    for given in sys.argv[1:] or CASES:
        torch.manual_seed(0)
        out[given] = check(given)
    print("RESULT" + json.dumps(out))
