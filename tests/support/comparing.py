"""Compiled code against eager code: what they return, what they wrote, how it lies in memory, gradients.

`same` compares two results part by part. `captured_whole` and `both_ways` call a program compiled and not. Where the
numbers of the two may differ by roundings, an fp64 run is the arbiter: `no_further_off` for one tensor, `agree` for a
program with its gradients and the arguments that it wrote."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from trace_tools import tensors_of

import flashover


def differ(
    got: Any,
    want: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    strides: bool = True,
    offsets: bool = False,
    floats: float = 0.0,
) -> str:
    """'' or where two values differ: type, structure, order of keys; of tensors dtype, shape, strides and numbers (NaN
    is NaN; without tolerances torch.testing's for the dtype); Python floats within `floats`."""
    deeper = functools.partial(differ, rtol=rtol, atol=atol, strides=strides, offsets=offsets, floats=floats)
    if type(got) is not type(want):
        return f"{type(got)} for {type(want)}: {got!r} for {want!r}"
    if isinstance(want, torch.Tensor):
        if (got.dtype, got.shape) != (want.dtype, want.shape):
            return f"{got.dtype} {tuple(got.shape)} for {want.dtype} {tuple(want.shape)}"
        if strides and got.stride() != want.stride():
            return f"strides {got.stride()} for {want.stride()}"
        if offsets and got.storage_offset() != want.storage_offset():
            return f"offset {got.storage_offset()} for {want.storage_offset()}"
        try:
            torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as e:
            return str(e)
        return ""
    if isinstance(want, dict):
        if list(got) != list(want):
            return f"keys {list(got)} for {list(want)}"
        parts: Any = ((f"[{k!r}]", got[k], want[k]) for k in want)
    elif isinstance(want, (list, tuple)):
        if len(got) != len(want):
            return f"{len(got)} parts for {len(want)}"
        parts = ((f"[{i}]", g, w) for i, (g, w) in enumerate(zip(got, want, strict=True)))
    elif isinstance(want, float):
        near = got == want or (got != got and want != want) or abs(got - want) <= floats * max(1, abs(want))
        return "" if near else f"{got!r} for {want!r}"
    else:
        return "" if got == want else f"{got!r} for {want!r}"
    return next((where + ": " + what for where, g, w in parts if (what := deeper(g, w))), "")


def same(got: Any, want: Any, **how: Any) -> None:
    """No difference (`how`: see differ)."""
    what = differ(got, want, **how)
    assert not what, what


def whole(f: Callable[..., Any], **options: Any) -> Any:
    """Compiled, and an error where that is not possible as one graph."""
    return flashover.compile(f, fullgraph=True, **options)


def captured_whole(f: Any, *args: Any) -> None:
    """Whole capture, equal values, dtypes and strides; the second call runs the compiled code."""
    with torch.no_grad():
        fast = whole(f)
        for _ in range(2):
            torch.manual_seed(3)
            want = f(*args)
            torch.manual_seed(3)
            got = fast(*args)
            a, b = pytree.tree_leaves(got), pytree.tree_leaves(want)
            assert len(a) == len(b)
            for x, y in zip(a, b, strict=True):
                if not isinstance(y, torch.Tensor):
                    assert type(x) is type(y) and (x is y or x == y)
                    continue
                same(x, y, rtol=1e-4, atol=1e-5)


def both_ways(program: Callable[..., Any], *calls: tuple[Any, ...], fullgraph: bool = False) -> None:
    """Each call's result, compiled and not."""
    compiled = flashover.compile(program, backend="eager", fullgraph=fullgraph)
    for arguments in calls:
        assert compiled(*copy.deepcopy(arguments)) == program(*copy.deepcopy(arguments))


def no_further_off(got: torch.Tensor | None, eager: torch.Tensor | None, exact: torch.Tensor | None, what: str) -> None:
    """A result lies like eager's and is at most twice as far from fp64's as eager's (without one: close to eager's)."""
    assert (got is None) == (eager is None), f"{what}: {got} instead of {eager}"
    if got is None or eager is None:
        return
    assert got.dtype == eager.dtype and got.shape == eager.shape, what
    assert got.stride() == eager.stride(), f"{what}: strides {got.stride()} instead of {eager.stride()}"
    assert got.requires_grad == eager.requires_grad, f"{what}: requires_grad"
    got, eager = got.detach(), eager.detach()
    if exact is None or not got.is_floating_point():
        torch.testing.assert_close(got, eager, msg=lambda m: f"{what}: {m}", equal_nan=True)
        return
    exact = exact.detach().double()
    error, own = (got.double() - exact).abs(), (eager.double() - exact).abs()
    scale = exact.abs().max() if exact.numel() else torch.tensor(0.0)
    bound = 2 * torch.nan_to_num(own).max() + torch.finfo(got.dtype).eps * 8 * scale if got.numel() else own
    bad = (error > bound) & ~(got.double() == eager.double()) & ~(got.isnan() & eager.isnan())
    assert not bad.any(), (
        f"{what}: off by {error[bad].max().item()}, eager by {own[bad].max().item()}, of {scale.item()}"
    )


def loss_of(result: Any) -> torch.Tensor:
    """Every result that requires grad counts, each element differently."""
    total = torch.zeros(())
    for i, t in enumerate(tensors_of(result)):
        if t.requires_grad:
            weight = (
                torch.linspace(0.5, 1.5, max(t.numel(), 1), dtype=torch.float64)[: t.numel()]
                .reshape(t.shape)
                .to(t.dtype)
            )
            total = total + (t * weight * (i + 1)).sum().to(total.dtype if total.dtype == torch.float64 else t.dtype)
    return total


def double(x: Any) -> Any:
    """The same in fp64."""
    if isinstance(x, torch.Tensor) and x.is_floating_point():
        return x.detach().double().requires_grad_(x.requires_grad)
    return x


def again(x: Any) -> Any:
    """The same tensor anew, strides kept."""
    if not isinstance(x, torch.Tensor):
        return x
    out = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype)
    return out.copy_(x.detach()).requires_grad_(x.requires_grad)


def gradients(f: Callable[..., Any], args: list[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Results, and gradients of the arguments that require one."""
    torch.manual_seed(3)
    out = tensors_of(f(*args))
    wanted = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    return out, list(torch.autograd.grad(loss_of(out), wanted, allow_unused=True))


def agree(
    f: Callable[..., Any], *args: Any, calls: int = 2, exact: bool = True, fullgraph: bool = True, **options: Any
) -> None:
    """Results, gradients and arguments afterwards, compiled, eager and (with `exact`) in fp64."""
    fast = flashover.compile(f, fullgraph=fullgraph, options={"verify": True, **options})
    for call in range(calls):
        out, grads = gradients(fast, own := [again(a) for a in args])
        eager_out, eager_grads = gradients(f, theirs := [again(a) for a in args])
        exact_args = [double(a) for a in args]
        exact_out, exact_grads = gradients(f, exact_args) if exact else ([None] * len(out), [None] * len(grads))
        assert len(out) == len(eager_out)
        for i, (g, e, x) in enumerate(zip(out, eager_out, exact_out, strict=True)):
            no_further_off(g, e, x, f"call {call}, result {i}")
        for i, (g, e, x) in enumerate(zip(grads, eager_grads, exact_grads, strict=True)):
            no_further_off(g, e, x, f"call {call}, gradient {i}")
        for i, (g, e, x) in enumerate(zip(own, theirs, exact_args, strict=True)):
            if isinstance(g, torch.Tensor):
                no_further_off(g, e, x if exact else None, f"call {call}, argument {i}")
