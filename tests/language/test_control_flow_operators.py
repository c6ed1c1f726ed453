"""torch's control flow operators and flex_attention, which run themselves through torch.compile in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from comparing import whole

import flashover

pytestmark = pytest.mark.filterwarnings("error:flashover. .* runs eager")  # (the results would be right all the same)
Tensor = torch.Tensor


def x() -> Tensor:
    return torch.arange(12.0).reshape(3, 4) * 0.1


def test_cond_selects() -> None:
    def f(p: Tensor, a: Tensor) -> Any:
        return torch.cond(p, lambda v: {"o": (v.sin(), v + 1)}, lambda v: {"o": (v.cos(), v - 1)}, (a,))

    c = whole(f)
    for p in (True, False):
        got = c(torch.tensor(p), x())["o"]
        want = (x().sin(), x() + 1) if p else (x().cos(), x() - 1)
        torch.testing.assert_close(got, want)


def test_cond_takes_one_gradient() -> None:
    c = flashover.compile(lambda p, a: torch.cond(p, lambda v: v.sqrt(), lambda v: v * 2, (a,)).sum())
    a = torch.zeros(3, requires_grad=True)
    c(torch.tensor(False), a).backward()  # the gradient of sqrt at zero is infinite
    assert a.grad is not None and torch.equal(a.grad, torch.full((3,), 2.0))


def test_cond_draws_in_one_branch_only() -> None:
    c = flashover.compile(
        lambda p, a: torch.cond(p, lambda v: v + torch.rand(3), lambda v: v + torch.rand(3) * 2, (a,))
    )
    torch.manual_seed(0)
    got = c(torch.tensor(True), torch.zeros(3)), torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(got[0], torch.rand(3)) and torch.equal(got[1], torch.rand(1))


def test_while_loop_and_scan() -> None:
    from torch._higher_order_ops import map as each
    from torch._higher_order_ops.scan import scan
    from torch._higher_order_ops.while_loop import while_loop

    def f(a: Tensor) -> Any:
        return (
            while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), (torch.tensor(0), a)),
            scan(lambda c, v: (c + v, c * v), torch.zeros(4), a),
            scan(lambda c, v: (c + v, c * v), torch.zeros(3), a, dim=1, reverse=True),
            each(lambda row, k: row * k, a, torch.ones(4) * 2),
        )

    loop, (total, rows), (_, columns), doubled = whole(f)(x())
    assert int(loop[0]) == 3
    torch.testing.assert_close(loop[1], x() * 8)
    torch.testing.assert_close(total, x().sum(0))
    torch.testing.assert_close(rows, (x().cumsum(0) - x()) * x())
    wanted = ((x().flip(1).cumsum(1) - x().flip(1)) * x().flip(1)).t().flip(0)
    # Steps lie along dim 0, in later versions of torch along the one that was scanned.
    torch.testing.assert_close(columns, wanted if columns.shape == wanted.shape else wanted.t())
    torch.testing.assert_close(doubled, x() * 2)


@pytest.mark.parametrize("write", ["an argument", "what is around it"])
def test_only_the_branch_that_is_taken_writes(write: str) -> None:
    around = torch.zeros(3, 4)

    def yes(a: Tensor) -> Tensor:
        kept = a + 1
        kept.mul_(2)  # (its own: that alone is no reason to end the graph)
        return kept

    def no(a: Tensor) -> Tensor:
        return a.sin_() if write == "an argument" else around.add_(1) * a

    c = flashover.compile(lambda a: torch.cond(a.sum() > 0, yes, no, (a,)))
    with torch.no_grad():
        for step, sign in enumerate((1, -1, 1)):
            given = x() * sign
            got, written = c(given), step > 0
            if sign > 0:
                torch.testing.assert_close(got, (x() + 1) * 2)
                torch.testing.assert_close(given, x())
            elif write == "an argument":
                torch.testing.assert_close(given, (-x()).sin())
            assert torch.equal(around, torch.full((3, 4), float(written and write != "an argument")))


def test_branches_may_write_what_they_made() -> None:
    c = whole(lambda a: torch.cond(a.sum() > 0, lambda v: (v + 1).mul_(2), lambda v: v * 3, (a,)))
    with torch.no_grad():
        torch.testing.assert_close(c(x()), (x() + 1) * 2)
        torch.testing.assert_close(c(-x()), -x() * 3)


def test_while_loop_over_data() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    c = flashover.compile(lambda a: while_loop(lambda v: v.sum() < 100, lambda v: (v * 2 + 1,), (a,))[0])
    for k in (1, 40):
        want = x() * k
        while want.sum() < 100:
            want = want * 2 + 1
        torch.testing.assert_close(c(x() * k), want)


def test_flex_attention() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q = torch.arange(512.0).reshape(1, 2, 32, 8).sin()
    bias = torch.arange(32.0) * 0.01
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 2, 32, 32, device="cpu")
    c = whole(lambda q: flex_attention(q, q + 1, q * 2, score_mod=lambda s, b, h, i, j: s + bias[j], block_mask=mask))
    scores = q @ (q + 1).transpose(-1, -2) / 8**0.5 + bias
    scores = scores.masked_fill(~torch.ones(32, 32, dtype=torch.bool).tril(), -torch.inf)
    with torch.no_grad():
        torch.testing.assert_close(c(q), scores.softmax(-1) @ (q * 2))


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize(
    ("combine", "given"),
    [
        (lambda a, b: a + b, lambda x: x),
        (lambda a, b: (a[0] + b[0], a[1] * b[1]), lambda x: (x, x)),
        (lambda a, b: {"sum": a["sum"] + b["sum"]}, lambda x: {"sum": x}),
    ],
)
def test_a_scan_of_flat_operands_has_the_form_of_what_combines(combine: Any, given: Any, rows: int) -> None:
    """What torch's associative_scan hands on in its mode for CUDA: a list of one was returned for a tensor."""
    import functools

    import torch.utils._pytree as pytree
    from torch._higher_order_ops.associative_scan import associative_scan_op, wrap_combine_fn_flat

    x = torch.randn(rows, 4)
    leaves, form = pytree.tree_flatten(given(x))
    flat = functools.partial(wrap_combine_fn_flat, combine_fn=combine, spec=form, num_leaves=len(leaves))

    def scan(combine_fn: Any, xs: Any) -> Any:
        return associative_scan_op(combine_fn, xs, additional_inputs=())

    got, got_form = pytree.tree_flatten(flashover.compile(scan, fullgraph=True)(flat, leaves))
    assert got_form == form
    torch.testing.assert_close(got, [x.cumsum(0), x.cumprod(0)][: len(leaves)])
