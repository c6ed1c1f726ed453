"""flex_attention's kernels on a GPU, forward and gradients, against eager with fp64 as arbiter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from flex_programs import PROGRAMS, Program, Sizes, block_mask, moved_into

import flashover

pytestmark = pytest.mark.gpu
Tensor = torch.Tensor


def operands(s: Sizes, dtype: torch.dtype, width: int = 64, group: int = 1, grad: bool = False) -> list[Tensor]:
    heads = (s.heads, s.heads // group, s.heads // group)
    rows = (s.queries, s.keys, s.keys)
    made = (torch.randn(s.batch, h, n, width, device="cuda").to(dtype) for h, n in zip(heads, rows, strict=True))
    return [x.requires_grad_(grad) for x in made]


def program(p: Program, **given: Any) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    def f(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Any:
        aux = AuxRequest(lse=True, max_scores=True)
        out, aux = flex_attention(q, k, v, p.score_mod, mask, return_aux=aux, **given)
        return out, aux.lse, aux.max_scores

    return f


def near(got: Tensor, want: Tensor, exact: Tensor, what: str, times: int = 2) -> None:
    assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride()), what
    assert torch.equal(got.isinf(), want.isinf()) and not got.isnan().any(), what
    off, own, scale = (t.double().nan_to_num(0, 0, 0).abs().max() for t in (got - exact, want - exact, exact))
    assert off <= times * own + 8 * torch.finfo(got.dtype).eps * scale, (
        f"{what}: off by {off}, eager by {own}, of {scale}"
    )


def check(p: Program, s: Sizes, args: list[Tensor], block: int = 128, **given: Any) -> None:
    with moved_into(p, [t.cuda() for t in p.tensors]) as moved:
        mask = block_mask(moved, s, block, "cuda")
        f = program(moved, **given)
        c = flashover.compile(f, fullgraph=True)
        exact = f(*(x.detach().double() for x in args), mask)
        for _ in range(2):
            got, want = c(*args, mask), f(*args, mask)
            for g, w, e, what in zip(got, want, exact, ("out", "lse", "max"), strict=True):
                near(g.detach(), w.detach(), e, what)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sizes", [Sizes(2, 4, 512, 512), Sizes(2, 2, 301, 413), Sizes(2, 2, 1, 700)], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_masks_and_scores(name: str, sizes: Sizes, dtype: torch.dtype) -> None:
    check(PROGRAMS[name](sizes), sizes, operands(sizes, dtype))


@pytest.mark.parametrize(("width", "group"), [(128, 4), (40, 2), (256, 1), (16, 1)])
def test_groups_of_heads_and_widths(width: int, group: int) -> None:
    s = Sizes(2, 4, 300, 300)
    p = PROGRAMS["combined"](s)
    for dtype in (torch.bfloat16, torch.float32):
        check(p, s, operands(s, dtype, width, group), enable_gqa=group > 1)


def test_changing_sizes() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    c = flashover.compile(lambda q, k, v, m: flex_attention(q, k, v, block_mask=m), fullgraph=True, dynamic=True)
    for n, m in ((256, 256), (300, 300), (77, 500), (1, 129), (1000, 1000)):
        s = Sizes(2, 2, n, m)
        args = operands(s, torch.bfloat16)
        mask = block_mask(PROGRAMS["causal"](s), s, 128, "cuda")
        want = flex_attention(*(x.float() for x in args), block_mask=mask)
        torch.testing.assert_close(c(*args, mask).float(), want, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str, dtype: torch.dtype, group: int) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    s = Sizes(2, 4, 200, 260)
    p = PROGRAMS[name](s)
    args = operands(s, dtype, 64, group, grad=True)
    read = [t.cuda().requires_grad_(t.is_floating_point()) for t in p.tensors]
    with moved_into(p, read) as moved:
        mask = block_mask(moved, s, 128, "cuda")

        def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return flex_attention(q, k, v, moved.score_mod, mask, enable_gqa=group > 1)

        leaves = [*args, *(t for t in read if t.requires_grad)]
        weight = torch.randn(s.batch, s.heads, s.queries, 64, device="cuda").to(dtype)
        got = torch.autograd.grad(flashover.compile(f, fullgraph=True)(*args), leaves, weight)
        want = torch.autograd.grad(f(*args), leaves, weight)
        wide = [x.detach().double().requires_grad_() for x in args]
        exact = torch.autograd.grad(f(*wide), [*wide, *leaves[3:]], weight.double())
        for g, w, e, what in zip(got, want, exact, ("q", "k", "v", "read", "read too"), strict=False):
            # What a table gets is a sum over all scores, most of which cancel.
            near(g, w, e, what, times=4 if what.startswith("read") else 2)
