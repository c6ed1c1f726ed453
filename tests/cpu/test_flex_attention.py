"""flex_attention in compiled code: one kernel that skips the blocks of the mask, against eager with fp64 as arbiter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import no_further_off
from flex_programs import PROGRAMS, Program, Sizes, block_mask
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

import flashover

Tensor = torch.Tensor


def operands(
    s: Sizes, dtype: torch.dtype = torch.float32, *, width: int = 32, value_width: int = 32, group: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    q = torch.randn(s.batch, s.queries, s.heads, width).to(dtype).transpose(1, 2)
    k = torch.randn(s.batch, s.heads // group, s.keys, width).to(dtype)
    return q, k, torch.randn(s.batch, s.heads // group, s.keys, value_width).to(dtype)


def program(p: Program, **given: Any) -> Callable[..., Any]:
    def f(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Any:
        out, aux = flex_attention(q, k, v, p.score_mod, mask, return_aux=AuxRequest(lse=True), **given)
        return out, aux.lse

    return f


def is_one_kernel(f: Callable[..., Any], *args: Any) -> bool:
    text = str(flashover.explain(f)(*args))
    return "kernel flex_attention" in text and "0 calls of libraries" in text


def check(f: Any, c: Any, args: Any, what: str = "") -> None:
    got, want = c(*args), f(*args)
    exact = f(*[a.double() if isinstance(a, Tensor) else a for a in args])
    for g, w, e, name in zip(got, want, exact, ("out", "lse"), strict=True):
        assert (g.dtype, g.shape, g.stride()) == (w.dtype, w.shape, w.stride()), f"{what} {name}"
        assert torch.equal(g.isinf(), w.isinf()) and not g.isnan().any(), f"{what} {name}"
        ends = w.isinf()
        no_further_off(g.masked_fill(ends, 0), w.masked_fill(ends, 0), e.masked_fill(ends, 0), f"{what} {name}")


SIZES = {"even": Sizes(2, 4, 96, 96), "odd": Sizes(2, 2, 75, 101), "one": Sizes(2, 2, 1, 70)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_masks_and_scores(name: str, sizes: str, dtype: torch.dtype) -> None:
    s = SIZES[sizes]
    p = PROGRAMS[name](s)
    f = program(p)
    args = (*operands(s, dtype), block_mask(p, s))
    check(f, flashover.compile(f, fullgraph=True), args)
    assert is_one_kernel(f, *args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("width", "value_width", "group"), [(64, 64, 2), (40, 24, 4), (7, 9, 1), (128, 16, 1), (17, 256, 2)]
)
def test_groups_of_heads_and_widths(width: int, value_width: int, group: int, dtype: torch.dtype) -> None:
    s = Sizes(2, 4, 50, 140)
    p = PROGRAMS["combined"](s)
    f = program(p, enable_gqa=group > 1, scale=0.3)
    args = (*operands(s, dtype, width=width, value_width=value_width, group=group), block_mask(p, s))
    check(f, flashover.compile(f, fullgraph=True), args)
    assert is_one_kernel(f, *args)


def test_keys_shared_by_a_batch() -> None:
    s = Sizes(3, 2, 40, 60)
    p = PROGRAMS["documents"](s)
    q, k, v = operands(s)
    f = program(p)
    check(f, flashover.compile(f, fullgraph=True), (q, k[:1], v[:1], block_mask(p, s)))


@pytest.mark.parametrize("block", [16, 64, 128, (32, 64), (256, 128), (48, 80)], ids=str)
def test_block_sizes(block: Any) -> None:
    s = Sizes(1, 2, 300, 333)
    p = PROGRAMS["window"](s)
    f = program(p)
    args = (*operands(s), block_mask(p, s, block))
    check(f, flashover.compile(f, fullgraph=True), args)
    assert is_one_kernel(f, *args)


def test_blocks_of_odd_sizes_are_no_kernel() -> None:
    s = Sizes(1, 2, 60, 70)
    p = PROGRAMS["causal"](s)
    f = program(p)
    args = (*operands(s), block_mask(p, s, 10))
    check(f, flashover.compile(f, fullgraph=True), args)


def test_f64_is_no_kernel() -> None:
    s = Sizes(1, 2, 33, 40)
    p = PROGRAMS["alibi"](s)
    f = program(p)
    args = tuple(x.double() for x in operands(s))
    got, want = flashover.compile(f, fullgraph=True)(*args, None), f(*args, None)
    torch.testing.assert_close(got, want)


def test_blocks_decide_at_each_call() -> None:
    """Another mask of the same sizes: other lists, other tensors that mask_mod reads."""
    s = Sizes(2, 2, 130, 130)
    q, k, v = operands(s)

    def f(q: Tensor, k: Tensor, v: Tensor, documents: Tensor, mask: Any) -> Tensor:
        return flex_attention(q, k, v, lambda x, b, h, i, j: x + (documents[b, i] == 0), block_mask=mask)

    c = flashover.compile(f, fullgraph=True)
    counted = None
    for length in (5, 40, 130):
        documents = (torch.arange(130) // length).expand(2, -1).contiguous()
        mask = block_mask(Program(mask_mod=lambda b, h, i, j, d=documents: d[b, i] == d[b, j]), s)
        torch.testing.assert_close(c(q, k, v, documents, mask), f(q, k, v, documents, mask))
        counts = mask.kv_num_blocks.sum()
        assert counts != counted
        counted = counts


def test_full_and_empty_blocks_are_not_asked() -> None:
    """Lists that say otherwise than mask_mod would: the kernel looks where they say."""
    s = Sizes(1, 1, 64, 64)
    p = Program(mask_mod=lambda b, h, i, j: i * 0 + j * 0 == 0)
    q, k, v = operands(s)
    mask = block_mask(p, s)
    assert int(mask.full_kv_num_blocks.sum()) == 4
    mask.full_kv_num_blocks = torch.ones_like(mask.full_kv_num_blocks)
    mask.full_kv_indices = torch.tensor([[[[1, 0], [0, 1]]]], dtype=torch.int32)
    c = flashover.compile(lambda q, k, v, m: flex_attention(q, k, v, block_mask=m), fullgraph=True)
    top = torch.nn.functional.scaled_dot_product_attention(q[:, :, :32], k[:, :, 32:], v[:, :, 32:])
    low = torch.nn.functional.scaled_dot_product_attention(q[:, :, 32:], k[:, :, :32], v[:, :, :32])
    torch.testing.assert_close(c(q, k, v, mask), torch.cat([top, low], 2))


@pytest.mark.parametrize("name", ["full", "causal", "relative", "alibi", "combined", "documents"])
def test_changing_sizes(name: str) -> None:
    c: Any = None
    for n, m in ((64, 64), (97, 97), (130, 200), (33, 70), (1, 40), (201, 201)):
        s = Sizes(2, 2, n, m)
        p = PROGRAMS[name](s)

        def f(q: Tensor, k: Tensor, v: Tensor, mask: Any, p: Program = p) -> Any:
            return flex_attention(q, k, v, p.score_mod, mask)

        c = c or flashover.compile(
            lambda q, k, v, mask, score: flex_attention(q, k, v, score, mask), fullgraph=True, dynamic=True
        )
        args = operands(s)
        torch.testing.assert_close(c(*args, block_mask(p, s), p.score_mod), f(*args, block_mask(p, s)))


def test_operands_that_lie_otherwise() -> None:
    s = Sizes(2, 4, 40, 56)
    p = PROGRAMS["causal"](s)
    q = torch.randn(4, 2, 40, 32).transpose(0, 1)
    k = torch.randn(2, 4, 32, 56).transpose(-1, -2)
    v = torch.randn(2, 56, 4, 64)[..., ::2].transpose(1, 2)
    f = program(p)
    check(f, flashover.compile(f, fullgraph=True), (q, k, v, block_mask(p, s)))


def test_between_other_operators() -> None:
    """Heads are cut out of one projection, and joined again."""
    s = Sizes(2, 4, 70, 70)
    p = PROGRAMS["window"](s)
    mask = block_mask(p, s)
    weight = torch.randn(96, 32) * 0.2

    def f(x: Tensor) -> Tensor:
        q, k, v = (x @ weight.t()).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        return flex_attention(q, k, v, block_mask=mask).transpose(1, 2).flatten(2).relu() + x

    c, x = flashover.compile(f, fullgraph=True), torch.randn(2, 70, 32)
    no_further_off(c(x), f(x), None, "out")


def test_autocast() -> None:
    s = Sizes(2, 2, 60, 60)
    p = PROGRAMS["soft_cap"](s)

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return flex_attention(q, k, v, p.score_mod)

    args = operands(s)
    got, want = flashover.compile(f, fullgraph=True)(*args), f(*args)
    no_further_off(got, want, flex_attention(*(x.bfloat16().double() for x in args), p.score_mod), "out")


def test_mask_made_in_the_call() -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    def f(q: Tensor, k: Tensor, v: Tensor, documents: Tensor) -> Tensor:
        mask = create_block_mask(
            lambda b, h, i, j: (i >= j) & (documents[i] == documents[j]), None, None, 90, 90, "cpu", BLOCK_SIZE=32
        )
        return flex_attention(q, k, v, block_mask=mask)

    args = (*operands(Sizes(1, 2, 90, 90)), torch.arange(90) // 17)
    torch.testing.assert_close(flashover.compile(f, fullgraph=True)(*args), f(*args))


def test_index_out_of_range_raises() -> None:
    table = torch.zeros(20)
    q, k, v = operands(Sizes(1, 1, 24, 24))
    c = flashover.compile(lambda q, k, v: flex_attention(q, k, v, lambda x, b, h, i, j: x + table[i + j]))
    with pytest.raises(IndexError, match="out of bounds"):
        c(q, k, v)


def test_scores_that_are_not_finite() -> None:
    s = Sizes(1, 2, 20, 40)
    q, k, v = operands(s)
    places = torch.zeros(20, 40)
    places[3, 5], places[4, 6], places[5] = torch.inf, torch.nan, -torch.inf

    def f(q: Tensor, k: Tensor, v: Tensor) -> Any:
        out, lse = flex_attention(q, k, v, lambda x, b, h, i, j: x + places[i, j], return_lse=True)
        return out, lse

    for got, want in zip(flashover.compile(f, fullgraph=True)(q, k, v), f(q, k, v), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("name", ["combined", "relative", "padding"])
def test_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA (eager refuses them on the CPU); of the tensors that score_mod reads, too."""
    import torch.nn.attention.flex_attention as module

    s = Sizes(2, 4, 40, 60)
    p = PROGRAMS[name](s)
    mask = block_mask(p, s)
    leaves = [x.detach().requires_grad_() for x in operands(s, group=2)]
    read = [t.requires_grad_() for t in p.tensors if t.is_floating_point()]

    def f(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, p.score_mod, mask, enable_gqa=True, return_lse=True)

    def step(f: Any, leaves: list[Tensor]) -> Any:
        out, lse = f(*leaves)
        loss = (out * weight.to(out.dtype)).sum() + lse.masked_fill(lse == -torch.inf, 0).sin().sum()
        return torch.autograd.grad(loss, [*leaves, *read])

    weight = torch.randn(2, 4, 40, 32)
    monkeypatch.setattr(module, "_validate_device", lambda *_: None)
    want, exact = step(f, leaves), step(f, [x.detach().double().requires_grad_() for x in leaves])
    got = step(flashover.compile(f, fullgraph=True), leaves)
    for g, w, e in zip(got, want, exact, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(g, e.float(), rtol=1e-4, atol=1e-5)


def test_eager_refuses_gradients_on_the_cpu() -> None:
    q, k, v = operands(Sizes(1, 1, 16, 16))
    c = flashover.compile(lambda q: flex_attention(q, k, v))
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        c(q.requires_grad_())
