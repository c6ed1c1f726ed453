"""What Python does with sizes and shapes is right at sizes that were not traced, whether they stay symbols or not."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import differ

import flashover

T = torch.Tensor
TABLE = {(5, 8): 1.0, (6, 8): 2.0}


class Holder:
    shape: Any = None


def setting(x: T) -> T:
    Holder.shape = x.shape
    return x + 1


def by_comparison(x: T) -> T:
    if x.shape == (5, 8):
        return x + 1
    return x - 1


def by_membership(x: T) -> T:
    return x + (1 if 7 in x.shape else 2)


def by_loop(x: T) -> T:
    for n in x.shape:
        x = x + n
    return x


def by_unpacking(x: T) -> T:
    n, m = x.shape
    return x.reshape(m, n) * n


def by_dict(x: T) -> T:
    made = {x.shape[0]: "a", 5: "five", 6: "six"}
    return x + len(made)


def by_set(x: T) -> T:
    return x + len({*x.shape, 5, 8})


def by_slots(x: T) -> tuple[Any, ...]:
    rest = x.shape[1:]
    return x.sum(), rest, len(rest)


def by_range(x: T) -> T:
    return torch.stack([x[i] * i for i in range(x.shape[0])])


def by_try(x: T) -> T:
    try:
        return x.view(-1, 5)
    except RuntimeError:
        return x * 2


def by_match(x: T) -> T:
    match x.shape:
        case (5, _):
            return x + 1
        case (_, 8):
            return x + 2
    return x


def by_format(x: T) -> tuple[T, str, str, str]:
    return x, f"{x.shape}", str(x.shape), f"{x.shape[0]:04d}"


def by_list(x: T) -> tuple[T, list[int]]:
    shape = list(x.shape)
    shape[0] += 1
    shape.append(3)
    return x, shape


def told(x: T) -> tuple[Any, ...]:
    """Shapes in messages, which most programs make and few look at."""
    rest, pair = x.shape[1:], (x.shape[0], "rows", 1.5, None, True)
    torch._assert(x.ndim == 2, f"two dimensions, not {x.shape}, {rest}, {pair}")
    return x * 2, f"{x.shape}{rest!r}{pair}{pair!s}{[x.shape[0] + 1, 2]}{(x.shape[0],)}{x.shape!a}{x.shape[:0]}"


def checked(x: T) -> T:
    torch._assert(x.ndim == 2, f"two dimensions, not {x.shape} and {list(x.shape)}, {(x.shape[0], 3)}")
    return x.cos() + 1


def across_a_break(x: T) -> tuple[Any, ...]:
    shape, rows, both = x.shape, x.shape[0] * 2, [x.shape, x.t().shape]
    print(end="")
    return x.view(shape) * rows, shape, both, f"{shape}"


def bigger(n: int) -> int:
    return n + 1


def by_sorting(x: T) -> tuple[T, list[int]]:
    return x, sorted([*x.shape, 7, 6])


PROGRAMS: dict[str, Callable[[T], object]] = {
    "shape is a result": lambda x: (x + 1, x.shape),
    "shape in a list": lambda x: [x + 1, [x.shape, {"shape": x.shape}]],
    "size() is a result": lambda x: (x + 1, x.size(), x.size(0)),
    "a result's shape": lambda x: ((x @ x.t()).shape, x[1:].shape, x + 1),
    "attribute": setting,
    "shape == tuple": by_comparison,
    "list == list": lambda x: x + (1 if list(x.shape) == [x.shape[0], 8] else 2),
    "list != list": lambda x: x + (1 if [x.shape[0], 3] != [7, 3] else 2),
    "list of tensors and sizes": lambda x: x + (1 if [x, x.shape[0]] == [x, x.size(0)] else 2),
    "tuple with a tensor": lambda x: x + (1 if (x, x.shape[0]) == (x, x.size(0)) else 2),
    "shape == Size": lambda x: x + (1 if x.shape == torch.Size([x.shape[0], 8]) else 2),
    "Size is a result": lambda x: (x.reshape(torch.Size((2, x.shape[0], 4))), torch.Size([x.shape[0] * 2])),
    "lists in lists": lambda x: x + (1 if [[x.shape[0]], 2] == [[x.shape[0] + 1], 2] else 2),
    "shape != shape": lambda x: x + (1 if x.shape != x[:5].shape else 2),
    "shape < shape": lambda x: x + (1 if x.shape < (6, 9) else 2),
    "in": by_membership,
    "index of a shape": lambda x: x + x.shape.index(8) + x.shape.count(6),
    "table by shape": lambda x: x * TABLE.get(tuple(x.shape), 3.0),
    "table by torch.Size": lambda x: x * TABLE.get(x.shape, 3.0),
    "hash": lambda x: (x + 1, hash(x.shape), hash(x.shape[0])),
    "loop": by_loop,
    "unpacking": by_unpacking,
    "dict": by_dict,
    "set": by_set,
    "slice of a shape": by_slots,
    "range": by_range,
    "try": by_try,
    "match": by_match,
    "format": by_format,
    "list": by_list,
    "sorted": by_sorting,
    "concatenated": lambda x: (x.new_zeros(x.shape + (2,)), (*x.shape, 1)),  # noqa: RUF005 (the sum of shapes is meant)
    "shape[:-1] + (k,)": lambda x: x.view(x.shape[:-1] + (2, 4)),  # noqa: RUF005
    "numel of a shape": lambda x: (x + x.shape.numel(), x.numel(), x.nelement()),
    "prod": lambda x: (x + 1, math.prod(x.shape), sum(x.shape), max(x.shape), min(x.shape)),
    "sqrt": lambda x: x / math.sqrt(x.shape[0]),
    "power": lambda x: x * x.shape[0] ** -0.5,
    "division": lambda x: x * (x.shape[0] / 3) + x.shape[0] // 2 - x.shape[0] % 3,
    "divmod": lambda x: (x + 1, divmod(x.shape[0], 3)),
    "bits": lambda x: (x + 1, x.shape[0] & 3, x.shape[0] | 1, x.shape[0] ^ 2, x.shape[0] << 1, x.shape[0] >> 1),
    "bit_length": lambda x: (x + 1, x.shape[0].bit_length(), (x.shape[0] - 1).bit_length()),
    "float": lambda x: (x * float(x.shape[0]), int(x.shape[0]), bool(x.shape[0] - 6), str(x.shape[0])),
    "operator": lambda x: (x + operator.mul(*x.shape), operator.index(x.shape[0])),
    "zip": lambda x: (x + 1, [a + b for a, b in zip(x.shape, x.t().shape, strict=True)]),
    "all": lambda x: x + (1 if all(a > 5 for a in x.shape) else 2),
    "map": lambda x: (x + 1, list(map(str, x.shape)), tuple(map(operator.neg, x.shape))),
    "map of Python functions": lambda x: (
        x + 1,
        tuple(map(bigger, x.shape)),
        list(filter(bigger, [x.shape[0] - 6, 1])),
    ),
    "map of two": lambda x: (x + 1, [*map(operator.add, x.shape, x.shape)], [*map(max, x.shape, (6, 7))]),
    "sorted by a key": lambda x: (x + 1, sorted([x.shape[0], 7, 3], key=operator.neg), max(x.shape, key=str)),
    "reduce": lambda x: (x + 1, functools.reduce(operator.mul, x.shape), list(itertools.accumulate(x.shape))),
    "starmap": lambda x: (x + 1, list(itertools.starmap(pow, [(x.shape[0], 2)])), sum(x.shape, start=x.shape[0])),
    "enumerate": lambda x: (x + 1, [i * n for i, n in enumerate(x.shape)], dict(enumerate(x.shape))),
    "product": lambda x: (x + 1, list(itertools.chain(x.shape, (1,))), list(reversed(x.shape)), any(x.shape)),
    "partial": lambda x: (x + 1, functools.partial(operator.add, x.shape[0])(1), divmod(7, x.shape[0])),
    "isinstance": lambda x: (x + 1, isinstance(x.shape[0], int), type(x.shape[0]) is int, callable(x.shape[0])),
    "bytes": lambda x: (x + 1, bytes(x.shape), len(bytearray(x.shape[0])), range(x.shape[0]), "a" * x.shape[0]),
    "compare with text": lambda x: (
        x + 1,
        x.shape[0] == "5",
        x.shape[0] in (5, 6),
        5 <= x.shape[0] != 7,
        not x.shape[0],
    ),
    "slice object": lambda x: (x[slice(x.shape[0] // 2)], slice(1, x.shape[0]).indices(20)),
    "chained": lambda x: x + (1 if 2 < x.shape[0] <= 6 else 2),
    "and, or": lambda x: x + ((x.shape[0] > 5 and x.shape[1]) or 3),
    "negative": lambda x: x[-(x.shape[0] // 2) :] + (-x.shape[0]) + abs(-x.shape[0]),
    "round": lambda x: (x + 1, round(x.shape[0] / 4), math.ceil(x.shape[0] / 4), math.floor(x.shape[0] / 4)),
    "stride": lambda x: (x + 1, x.stride(), x.t().stride(0), x.storage_offset(), x[1:].storage_offset()),
    "contiguous": lambda x: (x + 1, x.is_contiguous(), x.t().is_contiguous()),
    "len": lambda x: (x + len(x), len(x.shape), len(x.t())),
    "ndim": lambda x: x + x.ndim + x.dim(),
    "iter": lambda x: torch.stack([row * 2 for row in x]),
    "unbind": lambda x: torch.stack(x.unbind(0)[::-1]),
    "torch.Size": lambda x: (x + 1, torch.Size([x.shape[0], 2]), torch.Size((1, *x.shape))),
    "full": lambda x: torch.full((2,), x.shape[0]) + x.new_full((2,), x.shape[0]),
    "tensor": lambda x: (torch.tensor(x.shape[0]), torch.tensor(x.shape), torch.tensor([x.shape[0], 1.5])),
    "scalar arguments": lambda x: torch.add(x, x, alpha=x.shape[0]).clamp(max=x.shape[0]),
    "fill_": lambda x: torch.empty(3).fill_(x.shape[0]) + x[0, :3],
    "where": lambda x: torch.where(x > 0, x.shape[0], x),
    "compare with a tensor": lambda x: (x > x.shape[0], x.shape[0] < x, x == x.shape[0]),
    "linspace": lambda x: torch.linspace(0, x.shape[0], 4) + torch.arange(0, x.shape[0] * 4, x.shape[0]),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0) + x.shape[0],
    "pad to a multiple": lambda x: torch.nn.functional.pad(x, (0, 0, 0, -x.shape[0] % 4)),
    "narrow": lambda x: x.narrow(0, x.shape[0] // 2, x.shape[0] - x.shape[0] // 2),
    "select": lambda x: x.select(0, x.shape[0] // 2) + x[x.shape[0] - 1],
    "across a break": across_a_break,
    "told": told,
    "checked": checked,
    "index by a size": lambda x: x[torch.arange(x.shape[0]) % 3] + [1, 2, 3][x.shape[0] % 3],
}


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, dynamic: bool | None) -> None:
    f = PROGRAMS[name]
    fast = flashover.compile(f, dynamic=dynamic, options={"recompile_limit": 64})
    for n in (5, 6, 7, 8, 10, 5, 2, 16, 6, 33):
        x = torch.randn(n, 8)
        Holder.shape = None
        expected, held = f(x), Holder.shape
        Holder.shape = None
        got = fast(x)
        assert (wrong := differ(got, expected, rtol=1e-5, atol=1e-5)) == "", f"size {n}: {wrong}"
        assert Holder.shape == held and type(Holder.shape) is type(held)


def test_shapes_in_messages_that_nobody_reads_ask_for_no_number() -> None:
    fast = flashover.compile(checked, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    for shape in ((5, 8), (6, 9), (2, 3), (11, 4)):
        x = torch.randn(shape)
        assert torch.equal(fast(x), checked(x)) or torch.allclose(fast(x), checked(x))
    assert flashover.compile_stats()["graphs"] - before == 2


@pytest.mark.parametrize("dynamic", [None, True])
def test_strides_of_what_has_no_elements(dynamic: bool | None) -> None:
    """They are no products of sizes."""

    def f(x: T, n: int) -> tuple[Any, ...]:
        return x.stride(), x.relu().stride(0), torch.empty((2, n)).stride(), x + 1

    compiled = flashover.compile(f, dynamic=dynamic, options={"remember_sizes": False})
    for shape in [(3, 4), (5, 6), (4, 0), (0, 3), (2, 1), (7, 9)]:
        x = torch.ones(shape)
        assert compiled(x, shape[1])[:3] == f(x, shape[1])[:3], shape
