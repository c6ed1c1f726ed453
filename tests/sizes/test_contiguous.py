"""Tensor.contiguous and flatten over sizes that change: eager copies or not by the size, and one version serves both
where the program cannot notice it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F

import flashover

T = torch.Tensor
SIZES = (5, 16, 7, 2, 9, 1, 12, 31, 0, 3, 4, 8)


def transposed(x: T) -> T:
    return (x[:, :, 0].t().contiguous() * 2).relu()


def heads(x: T) -> T:
    batch, length, width = x.shape
    return x.view(batch, length, 2, width // 2).transpose(1, 2).contiguous().view(batch, length * width).sum(-1)


def flattened(x: T) -> T:
    a = x.permute(1, 0, 2)
    return torch.cat([a.contiguous().flatten(1), a.flatten(1).cos(), a.flatten(-2)], 1).sum(1)


def windows(x: T) -> T:
    """Padded to windows of four rows, computed, and cut: a copy where something was cut off."""
    more = -x.shape[0] % 4
    padded = F.pad(x, (0, 0, 0, 0, 0, more)).exp()
    return padded[: x.shape[0]].contiguous() * 2


def handed_out(x: T) -> T:
    return x[:, :, 0].t().contiguous()


def handed_out_by_way_of_another(x: T) -> T:
    return x.transpose(0, 1).contiguous().transpose(0, 1).contiguous()


def written(x: T) -> tuple[T, T]:
    y = x.transpose(0, 1).contiguous().add_(1)
    return y * 2, x * 3


def cut_and_handed_out(x: T) -> T:
    return F.pad(x, (0, 0, 0, 0, 0, -x.shape[0] % 4)).exp()[: x.shape[0]].contiguous()


def compared(x: T) -> T:
    y = F.pad(x, (0, 0, 0, 0, 0, -x.shape[0] % 4))[: x.shape[0]]
    return y.cos() if y.contiguous() is y else y.sin()


def run(f: Callable[[T], T | tuple[T, ...]], x: T) -> tuple[list[T], list[bool]]:
    """Results, and whether each lies in the argument's memory."""
    out = f(x)
    results = list(out) if isinstance(out, tuple) else [out]
    memory = x.untyped_storage().data_ptr()
    return results, [r.numel() > 0 and r.untyped_storage().data_ptr() == memory for r in results]


@pytest.mark.parametrize(
    ("f", "most"),
    [
        *((f, 2) for f in (transposed, heads, flattened)),
        (windows, 3),  # (of nothing that is cut off, and of others)
        (cut_and_handed_out, 3),
        *((f, 4) for f in (handed_out, handed_out_by_way_of_another, written, compared)),
    ],
)
def test_few_versions_serve_every_size(f: Callable[[T], T | tuple[T, ...]], most: int) -> None:
    compiled = flashover.compile(f, fullgraph=True, options={"remember_sizes": False, "recompile_limit": 64})
    for n in SIZES:
        x = torch.randn(n, 3, 4)
        mine, others = x.clone(), x.clone()
        (want, shared), (got, got_shared) = run(f, others), run(compiled, mine)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride(), n
        torch.testing.assert_close(mine, others)
        assert got_shared == shared, n
    assert len(compiled.versions) <= most


@pytest.mark.parametrize("f", [transposed, heads, flattened, windows])
def test_gradients(f: Callable[[T], T]) -> None:
    compiled = flashover.compile(f, fullgraph=True, options={"remember_sizes": False, "recompile_limit": 64})
    for n in SIZES:
        x, y = (torch.linspace(-1, 1, n * 12).view(n, 3, 4).requires_grad_() for _ in range(2))
        (f(x) ** 2).sum().backward()
        (compiled(y) ** 2).sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
    assert len(compiled.versions) <= 4


class Asking(torch.Tensor):
    """Whose class looks at a tensor before the method does."""

    seen: ClassVar[list[bool]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func is torch.Tensor.contiguous:
                cls.seen.append(args[0].is_contiguous())
            return func(*args, **(kwargs or {}))


def test_a_class_in_between_gets_true_answers() -> None:
    def f(x: T) -> tuple[T, bool]:
        y = x.contiguous()
        return y.cos(), Asking.seen.pop()

    compiled = flashover.compile(f, dynamic=True)
    for n in (5, 4, 7):
        assert compiled(torch.randn(n, 3).as_subclass(Asking))[1] is True
        assert compiled(torch.randn(3, n).t().as_subclass(Asking))[1] is False
