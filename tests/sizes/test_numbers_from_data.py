"""Numbers in tensors that the program hands out or computes with: part of the whole graph, read once it ran, and what
eager gives for every value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from comparing import differ
from number_programs import written_behind
from torch import Tensor

import flashover


class Kept:
    def __init__(self) -> None:
        self.last: Any = None
        self.by_name: dict[str, Any] = {}
        self.all: list[Any] = []


KEPT = Kept()


def kept(x: Tensor) -> Tensor:
    KEPT.last = x.sum().item()
    KEPT.by_name["max"] = x.max().item()
    KEPT.all.append(int(x.long().sum()))
    return x + 1


def in_a_loop(x: Tensor) -> Any:
    total, log = torch.zeros((), dtype=x.dtype), []
    for row in x:
        total += row.sum()
        log.append(total.item())
    return log, total


def stored(x: Tensor) -> Tensor:
    y = x * 2
    y[0] = x.max().item()
    y[y > 1] = x.min().item()
    return y


def in_containers(x: Tensor) -> Any:
    low, high = x.min().item(), x.max().item()
    return {"range": (low, high), "list": [low, {"high": high}]}, x - low


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "float()": lambda x: float(x.sum()),
    "item of whole numbers": lambda x: (x.nan_to_num(0, 9, -9).clamp(-9, 9).long().sum().item(), x + 1),
    "negative": lambda x: -x.square().sum().item(),
    "tolist": lambda x: (x.tolist(), x * 2),
    "tolist of whole numbers": lambda x: x.nan_to_num(0, 9, -9).clamp(-9, 9).long().tolist(),
    "tolist of a number": lambda x: x.sum().tolist(),
    "containers": in_containers,
    "a scalar operand": lambda x: x * x.max().item(),
    "scalar operands": lambda x: (x - x.min().item()) / (x.abs().max().item() + 1e-3),
    "computed": lambda x: x * (2.0 * x.max().item() - 1) + 3 / 2,
    "computed and handed out": lambda x: (x.sum().item() * 2 + 1, x.max().item() / 3, abs(x.min().item())),
    "of two": lambda x: (x.max().item() - x.min().item(), x * (x.max().item() - x.min().item())),
    "the larger": lambda x: x / max(1.0, x.sum().item()),
    "the smaller of two": lambda x: x * min(x.sum().item(), x.max().item()),
    "a quotient by what is never zero": lambda x: (3.0 / max(0.5, x.max().item()), 3.0 / min(-0.5, x.max().item())),
    "stored": stored,
    "handed on by typing": lambda x: x * cast("float", x.max().item()),
    "compared": lambda x: x > x[0, 0].item(),
    "whole numbers and a float": lambda x: torch.arange(4) * x.sum().item(),
    "to the power": lambda x: x.abs() ** x.max().item(),
    "where": lambda x: torch.where(x > 0, x, x.min().item()),
    "full": lambda x: torch.full((3,), x.max().item(), dtype=x.dtype),
    "a tensor of it": lambda x: torch.tensor(x.max().item(), dtype=x.dtype) + x,
    "clamped": lambda x: x.clamp(max=x.mean().item()),
    "alpha": lambda x: torch.add(x, x, alpha=x.max().item()),
    "words": lambda x: (f"{x[0].max().item():.3f}", str(x.max().item())),
    "written behind it": written_behind,
    "a loop": in_a_loop,
    "a size": lambda x: (x > 0).nonzero().shape[0],
    "computed sizes": lambda x: (x[x > 0].numel() * 2 + 1, x[x > 0].shape, x[x > 0] + 1),
}
VALUES = {
    "plain": [[1.5, -2.25], [3.0, 0.125]],
    "other": [[0.1, 0.2], [0.3, -0.7]],
    "negative": [[-1.0, -2.0], [-3.0, -4.0]],
    "zeros": [[0.0, -0.0], [0.0, 0.0]],
    "nan": [[1.0, math.nan], [2.0, 3.0]],
    "inf": [[1.0, math.inf], [2.0, -3.0]],
    "minus inf": [[1.0, -math.inf], [2.0, -3.0]],
    "huge": [[3e38, 0.0], [0.0, -1e30]],
    "tiny": [[1e-42, 0.0], [3e-39, -1e-40]],
}


def same(got: Any, want: Any, rtol: float = 1e-6) -> str:
    if isinstance(want, Tensor):
        return differ(got, want, rtol=rtol, atol=rtol)
    if type(got) is not type(want):
        return f"{type(got)} instead of {type(want)}"
    if isinstance(want, dict):
        return same(list(got.items()), list(want.items()), rtol)
    if isinstance(want, list | tuple):
        if len(got) != len(want):
            return f"{len(got)} instead of {len(want)}"
        return "; ".join(wrong for g, w in zip(got, want, strict=True) if (wrong := same(g, w, rtol)))
    if isinstance(want, float):
        close = got == want or (math.isnan(got) and math.isnan(want)) or abs(got - want) <= rtol * abs(want) + rtol
        return "" if close else f"{got} instead of {want}"
    return "" if got == want else f"{got} instead of {want}"


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_numbers_of_data(name: str, dtype: torch.dtype) -> None:
    f = PROGRAMS[name]
    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()
    for which, values in VALUES.items():
        x = torch.tensor(values, dtype=dtype)
        rtol = 2e-2 if dtype == torch.bfloat16 else 1e-6
        assert (wrong := same(compiled(x), f(x), rtol)) == "", f"{which}: {wrong}"
    after = flashover.compile_stats()
    assert after["graphs"] - before["graphs"] <= 2, "a version for each value"
    assert after["eager_calls"] == before["eager_calls"]


def test_with_numbers_that_the_call_knows() -> None:
    def f(x: Tensor, scale: float, step: Tensor) -> Tensor:
        return x * (scale * max(0.5, x.sum().item()) / step.item())

    compiled = flashover.compile(f, fullgraph=True)
    for n in range(5):
        x, scale, step = torch.randn(3, 2), 0.5 + n, torch.tensor(float(n + 1))
        assert (wrong := same(compiled(x, scale, step), f(x, scale, step))) == "", wrong
    assert compiled.stats().versions <= 2


def test_numbers_kept_by_objects() -> None:
    compiled = flashover.compile(kept, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    for scale in (1.0, -2.0, 7.5):
        x = torch.arange(4.0) * scale
        for f in (compiled, kept):
            f(x)
            got = KEPT.last, KEPT.by_name["max"], KEPT.all[-1]
            assert got == (float(x.sum()), float(x.max()), int(x.long().sum()))
            assert [type(v) for v in got] == [float, float, int]
    assert flashover.compile_stats()["graphs"] == before + 1


def test_whole_numbers_of_any_size() -> None:
    def f(x: Tensor) -> Any:
        n = x.max().item()
        return n, n * 4, n * n, n // 3, -n, n / 2, x.tolist(), f"{n:d}"

    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()
    for values in ([1, 2], [-5, -7], [0, 0], [2**62, 3], [-(2**63), -(2**63)], [2**63 - 1, 1]):
        x = torch.tensor(values)
        assert same(compiled(x), f(x)) == ""
    after = flashover.compile_stats()
    assert after["graphs"] == before["graphs"] + 1 and after["eager_calls"] == before["eager_calls"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.float16], ids=str)
def test_other_dtypes(dtype: torch.dtype) -> None:
    def f(x: Tensor) -> Any:
        return x.max().item(), x.tolist(), x[0].item()

    compiled = flashover.compile(f, fullgraph=True)
    for values in ([1, 2], [100, 7], [0, 0]):
        x = torch.tensor(values, dtype=dtype)
        assert same(compiled(x), f(x)) == ""


DIVIDES: dict[str, Callable[[Tensor], Any]] = {
    "by zero": lambda x: 1.0 / x.sum().item(),
    "used": lambda x: x * (1.0 / x.sum().item()),
    "whole": lambda x: int(x.max().item()),
    "root": lambda x: math.sqrt(x.sum().item()),
    "power": lambda x: x.sum().item() ** 0.5,
    "rounded": lambda x: round(x.sum().item()),
}


@pytest.mark.filterwarnings("default:(?s).*the program itself did not")  # a root of a negative number is complex
@pytest.mark.parametrize("name", DIVIDES)
def test_what_raises_for_some_data_raises_as_eager(name: str) -> None:
    f = DIVIDES[name]
    compiled = flashover.compile(f, fullgraph=True)
    for values in VALUES.values():
        x = torch.tensor(values, dtype=torch.float64)
        try:
            want = f(x)
        except (ArithmeticError, ValueError) as error:
            with pytest.raises(type(error), match=str(error)):
                compiled(x)
        else:
            assert same(compiled(x), want) == ""


def checked_sign(x: Tensor) -> Any:
    n = x.sum().item()
    torch._check(n >= 0)
    return x * 2


SIGNS: dict[str, Callable[[Tensor], Any]] = {
    "at least nothing": lambda x: x * (2 if x.sum().item() >= 0 else 3),
    "above minus one": lambda x: x * (2 if x.sum().item() > -1 else 3),
    "of its negative": lambda x: x * (2 if -x.sum().item() <= 0 else 3),
    "another number": lambda x: x * (2 if x.sum().item() != -4 else 3),
    "handed out": lambda x: (x + 1, x.sum().item() < 0),
    "of two": lambda x: x * (2 if sum(x.tolist()) >= 0 else 3),
    "of a product": lambda x: x * (2 if x.sum().item() * x.max().item() >= 0 else 3),
    "largest": lambda x: x + max(x.sum().item(), 0),
    "checked": checked_sign,
}


@pytest.mark.filterwarnings("default:(?s).*the program itself did not")
@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("name", SIGNS)
def test_a_whole_number_may_be_negative(name: str, fullgraph: bool) -> None:
    """It may become a size, which is never negative; what the program asks of it is answered for every number."""
    f = SIGNS[name]
    compiled = flashover.compile(f, fullgraph=fullgraph)
    for values in ([2, 3], [-2, -2], [1, 0], [4, -9], [0, 0], [-1, 1], [7, 1]):
        x = torch.tensor(values)
        try:
            want = f(x)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error)[:20]):
                compiled(x)
        else:
            assert same(compiled(x), want) == "", values


def test_in_training() -> None:
    def f(x: Tensor, w: Tensor) -> Any:
        y = x @ w
        scale = y.detach().abs().max().item()
        loss = (y / scale).square().sum()
        return loss, scale, loss.item(), y.tolist()

    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    for seed in range(4):
        torch.manual_seed(seed)
        x, w = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
        results = []
        for g in (compiled, f):
            leaf = w.clone().requires_grad_()
            loss, *rest = g(x, leaf)
            loss.backward()
            results.append((loss.detach(), rest, leaf.grad))
        assert same(*results) == ""
    assert flashover.compile_stats()["graphs"] == before + 1


def test_an_if_behind_it_breaks_there() -> None:
    def f(x: Tensor) -> Any:
        y = x * 2
        total = y.sum().item()
        z = y + total
        if total > 0:
            z = z.exp()
        return z, total

    compiled = flashover.compile(f)
    for values in VALUES.values():
        x = torch.tensor(values)
        assert same(compiled(x), f(x)) == ""


def test_ranges_and_types_of_the_result() -> None:
    """What eager refuses, or converts in another way, is as in eager."""

    def filled(x: Tensor, n: Tensor) -> Tensor:
        return torch.full((2,), n.item(), dtype=torch.float16) + x

    def in_place(x: Tensor, n: Tensor) -> Tensor:
        return x.clone().mul_(n.item())

    def added(x: Tensor, n: Tensor) -> Tensor:
        return torch.add(x, x, alpha=n.item())

    for f in (filled, in_place, added):
        for x in (torch.ones(2, dtype=torch.float16), torch.ones(2, dtype=torch.int32), torch.ones(2)):
            compiled = flashover.compile(f)
            for number in (2.0, 0.5, 1e6, 1e300, math.nan, -math.inf):
                n = torch.tensor(number, dtype=torch.float64)
                try:
                    want = f(x, n)
                except RuntimeError:
                    with pytest.raises(RuntimeError):
                        compiled(x, n)
                else:
                    assert same(compiled(x, n), want) == "", (f.__name__, x.dtype, number)


def test_a_computed_number_is_asserted_to_fit_a_narrow_operand() -> None:
    """Python computes doubles: eager refuses a finite one that f32 does not hold, and takes infinity."""

    def f(x: Tensor, n: Tensor) -> Tensor:
        factor = -n.sum().item() / max(1.0, x.sum().item())
        return torch.add(x, x, alpha=factor) + torch._foreach_addcdiv([x], [x], [x], [factor * 2])[0]

    x, compiled = torch.ones(3), flashover.compile(f, fullgraph=True)
    for number in (2.0, 1e30, math.inf, math.nan, 1e300, -1e39, 3.0):
        n = torch.tensor([number, 0.0], dtype=torch.float64)
        if math.isfinite(number) and abs(number) > 1e38:
            for g in (f, compiled):
                with pytest.raises(RuntimeError, match="value cannot be converted to type float without overflow"):
                    g(x, n)
        else:
            assert same(compiled(x, n), f(x, n)) == "", number
    assert len(compiled.versions) == 1


def test_a_divisor_of_a_program_that_writes_is_asserted_not_to_be_zero() -> None:
    """CPython would divide behind the graph, which has written by then: such a program broke at the division."""

    def f(x: Tensor, n: Tensor) -> Tensor:
        x.add_(1)
        ratio = 3.0 / n.sum().item()
        x.mul_(ratio)
        return torch.add(x, x, alpha=ratio * 2)

    compiled = flashover.compile(f, fullgraph=True)
    for number in (2.0, -0.5, math.inf, math.nan):
        x, y, n = torch.ones(3), torch.ones(3), torch.tensor([number, 0.0])
        assert same(compiled(x, n), f(y, n)) == "" and same(x, y) == ""
    for g in (f, compiled):
        x = torch.ones(3)
        with pytest.raises(ZeroDivisionError, match="float division by zero"):
            g(x, torch.zeros(2))
        assert same(x, torch.full((3,), 2.0)) == ""
    assert len(compiled.versions) == 1
