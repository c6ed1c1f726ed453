"""Sizes that follow from data: captured whole, one compile, right for every number of elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import differ, double
from torch import Tensor

import flashover


def experts(x: Tensor, choice: Tensor, w: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for e in range(3):
        (rows,) = torch.where(choice == e)
        out.index_add_(0, rows, torch.tanh(x[rows] @ w[e]) * (e + 1))
    return out


def counted(x: Tensor, m: Tensor) -> Tensor:
    n = m.sum().item()
    return torch.zeros(n, 3) + torch.arange(n).unsqueeze(1) + x.sum()


def split_by_data(x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    n = m.sum()
    lengths = torch.stack([n, x.shape[0] - n])
    return tuple(part.sum(0) for part in x.split(lengths.tolist()))


def two_masks(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    first = x[m]
    second = first[first[:, 0] > 0]
    return first * 2, second.sum(0)


def written(x: Tensor, m: Tensor) -> Tensor:
    y = x.clone()
    y[m] = x[m] * 2 + 1
    return y


def checked(x: Tensor, m: Tensor) -> Tensor:
    n = int(m.sum())
    torch._check(n <= x.shape[0], lambda: "too many")
    torch._check_is_size(n)
    return x[:n].sum(0) + x.narrow(0, 0, n).exp().sum(0)


def asserted(x: Tensor, m: Tensor) -> Tensor:
    n = m.sum().item()
    if n > 12:
        raise ValueError(n)
    return torch.arange(n) + 1


def scattered_back(x: Tensor, m: Tensor) -> Tensor:
    out = torch.zeros(12, 4, dtype=x.dtype)
    out[m] = x[m].relu()
    return out


def best_rows(x: Tensor, m: Tensor) -> Tensor:
    """The first few by score, of those that are likely: how detectors choose boxes."""
    rows = torch.where(m)[0]
    best = x[:, 0][m].topk(min(5, rows.shape[0]))[1]
    chosen = x[rows[best]]
    return (chosen[:, 0::4] / 2).sum(0) + torch.zeros(len(best), 1).sum()


def clamped_columns(x: Tensor, m: Tensor) -> Tensor:
    rows = x[m]
    even, odd = rows[..., 0::2].clamp(0, 1), rows[..., 1::2].clamp(0, 0.5)
    return torch.stack((even, odd), dim=2).reshape(rows.shape)


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "sum of a mask": lambda x, m: x[m].sum(),
    "mean of a mask": lambda x, m: (x[m] * 2).sum(0),
    "a mask's rows": lambda x, m: x[m],
    "computed rows": lambda x, m: torch.relu(x[m] * 2 + 1),
    "product of rows": lambda x, m: x[m] @ x.t(),
    "nonzero": lambda x, m: torch.nonzero(m),
    "nonzero of a matrix": lambda x, m: torch.nonzero(x > 0),
    "nonzero and index": lambda x, m: x[torch.nonzero(m).squeeze(1)].exp(),
    "where and index_add": lambda x, m: x.index_add(0, torch.where(m)[0], x[torch.where(m)[0]] * 3),
    "masked_select": lambda x, m: x.masked_select(m.unsqueeze(1)) * 2,
    "masked_select of a matrix": lambda x, m: torch.masked_select(x, x > 0.5).sum(),
    "item as a size": counted,
    "two points": lambda x, m: (x[m].sum(0), x[~m].sum(0)),
    "points in dependence": two_masks,
    "split": split_by_data,
    "cat": lambda x, m: torch.cat([x[m], x[~m] * 2]),
    "softmax": lambda x, m: torch.softmax(x[m], -1),
    "layer norm": lambda x, m: torch.nn.functional.layer_norm(x[m], (4,)),
    "repeat_interleave": lambda x, m: x.repeat_interleave(m.long() * 2, dim=0) + 1,
    "unique": lambda x, m: torch.unique(m.long() * 3) * 2,
    "unique with counts": lambda x, m: torch.unique((x[:, 0] * 2).long(), return_inverse=True, return_counts=True),
    "bincount": lambda x, m: torch.bincount(m.long(), minlength=1) * 2,
    "shape of a mask": lambda x, m: x[m].reshape(x[m].shape[0] * 2, 2) + 1,
    "write by a mask": written,
    "checked numbers": checked,
    "asserted numbers": asserted,
    "scattered back": scattered_back,
    "best rows": best_rows,
    "clamped columns": clamped_columns,
    "slice of a mask": lambda x, m: x[m][:3] * 2,
    "cross entropy": lambda x, m: torch.nn.functional.cross_entropy(x[m], m.long()[m]),
    "sorted": lambda x, m: x[m][:, 0].sort()[0] * 2,
    "views": lambda x, m: (x[m].view(-1) + 1, x[m].t() * 2, x[m].unsqueeze(0).expand(2, -1, -1).sum(1)),
    "factories": lambda x, m: (torch.ones(int(m.sum()), 2) * 3, x.new_zeros(int(m.sum()), 4) + 1),
    "unique_consecutive": lambda x, m: torch.unique_consecutive(m.long()),
    "from a mask to the rest": lambda x, m: (x[m].sum() + x).relu(),
}


# Torch itself asks whether the values are one: such calls have a version of their own.
ONE_IS_SPECIAL = {"write by a mask", "scattered back"}


def masks(n: int) -> dict[str, Tensor]:
    one = torch.zeros(n, dtype=torch.bool)
    one[n // 2] = True
    return {
        "some": torch.arange(n) % 3 == 1,
        "none": torch.zeros(n, dtype=torch.bool),
        "one": one,
        "all": torch.ones(n, dtype=torch.bool),
        "random": torch.rand(n) > 0.5,
    }


def check(compiled: Callable[..., Any], f: Callable[..., Any], args: list[Tensor], what: str) -> None:
    got, want, exact = compiled(*args), f(*args), f(*[double(a) for a in args])
    assert (wrong := differ(got, want, rtol=1e-5, atol=1e-5)) == "", f"{what}: {wrong}"
    as_f64 = [t.double() for t in (got if isinstance(got, tuple) else (got,))]
    exactly = [t.double() for t in (exact if isinstance(exact, tuple) else (exact,))]
    assert (wrong := differ(as_f64, exactly, rtol=1e-4, atol=1e-4, strides=False)) == "", f"{what}, fp64: {wrong}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compile_serves_every_number_of_elements(name: str) -> None:
    f = PROGRAMS[name]
    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    eager = flashover.compile_stats().get("eager_calls", 0)
    torch.manual_seed(0)
    with torch.no_grad():
        for what, mask in masks(12).items():
            check(compiled, f, [torch.randn(12, 4), mask], what)
    assert flashover.compile_stats()["graphs"] - before == 1 + (name in ONE_IS_SPECIAL)
    assert flashover.compile_stats().get("eager_calls", 0) == eager


def test_experts_with_changing_numbers_of_tokens() -> None:
    flashover.reset()
    compiled = flashover.compile(experts, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    w = torch.randn(3, 4, 4)
    for seed in range(6):
        torch.manual_seed(seed)
        with torch.no_grad():
            check(compiled, experts, [torch.randn(12, 4), torch.randint(0, 1 + seed % 3, (12,)), w], f"seed {seed}")
    assert flashover.compile_stats()["graphs"] - before == 1


def boxes(n: int) -> list[Tensor]:
    corner = torch.rand(n, 2) * 50
    return [torch.cat([corner, corner + torch.rand(n, 2) * 50], 1), torch.rand(n), torch.randint(0, 3, (n,))]


def test_boxes_that_do_not_overlap() -> None:
    torchvision = pytest.importorskip("torchvision")

    def detect(corners: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        likely = scores > 0.2
        corners, scores, labels = corners[likely], scores[likely], labels[likely]
        kept = torchvision.ops.batched_nms(corners, scores, labels, 0.3)
        return corners[kept] * 2, scores[kept], labels[kept]

    flashover.reset()
    compiled = flashover.compile(detect, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    for seed in range(4):
        torch.manual_seed(seed)
        args = boxes(20)
        if seed == 3:
            args[1] = args[1] * 0.1
        with torch.no_grad():
            assert (wrong := differ(compiled(*args), detect(*args))) == "", wrong
    assert flashover.compile_stats()["graphs"] - before == 2, "torchvision asks whether there are any boxes"


def test_both_kinds_of_sizes() -> None:
    """Sizes of inputs that change, and sizes that follow from data."""

    def f(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        return x[m].sum(0), torch.cat([x, x[m] * 2])

    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True, dynamic=True)
    before = flashover.compile_stats()["graphs"]
    for n in (5, 9, 2, 17, 64):
        for mask in masks(n).values():
            with torch.no_grad():
                check(compiled, f, [torch.randn(n, 4), mask], f"size {n}")
    assert flashover.compile_stats()["graphs"] - before == 1


def test_a_call_that_is_not_the_usual_case_runs_eager() -> None:
    """squeeze() gives another rank where there is one element: the check finds such a call."""

    def f(x: Tensor, m: Tensor) -> Tensor:
        return x[m].squeeze() + 1

    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True, options={"eager_warning": False})
    with torch.no_grad():
        for mask in masks(12).values():
            x = torch.randn(12, 4)
            assert (wrong := differ(compiled(x, mask), f(x, mask))) == "", wrong


def test_strides_of_tensors_without_elements() -> None:
    """They are those of larger tensors: eager's of one or none are 4 here."""

    def f(x: Tensor, m: Tensor) -> Tensor:
        return x[m][:, 0].sort()[0]

    compiled = flashover.compile(f, fullgraph=True)
    with torch.no_grad():
        for mask in masks(12).values():
            x = torch.randn(12, 4)
            got, want = compiled(x, mask), f(x, mask)
            assert (wrong := differ(got, want, strides=len(want) > 1)) == "", wrong


def test_what_eager_refuses_is_refused() -> None:
    def f(x: Tensor, m: Tensor) -> Tensor:
        return x[m] + x[~m]

    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True)
    x = torch.randn(12, 4)
    with torch.no_grad():
        half = torch.arange(12) < 6
        assert torch.equal(compiled(x, half), f(x, half))
        with pytest.raises(RuntimeError, match="must match the size"):
            compiled(x, torch.arange(12) < 5)


def test_what_was_written_before_a_check_is_undone() -> None:
    def f(state: Tensor, x: Tensor, m: Tensor) -> Tensor:
        state.add_(1)
        n = m.sum().item()
        return x[m] + x[:n] * state.sum() + x[~m]

    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True, options={"eager_warning": False})
    with torch.no_grad():
        for mask in [torch.arange(12) < 6, torch.arange(12) < 6, torch.arange(12) < 1, torch.arange(12) < 11]:
            state, want, x = torch.zeros(3), torch.zeros(3), torch.randn(12, 4)
            assert (wrong := differ(compiled(state, x, mask), f(want, x, mask))) == "", wrong
            assert torch.equal(state, want)


@pytest.mark.parametrize("every", [1, 9, 10**9], ids=["half of the calls", "one of nine", "none"])
def test_python_that_decides_by_data_breaks_only_where_it_decides_otherwise_often(every: int) -> None:
    def f(state: Tensor, x: Tensor, m: Tensor) -> Tensor:
        state.add_(1)
        found = x[m]
        return found.sum(0) + state if found.shape[0] > 3 else found.sum(0) - state

    flashover.reset()
    compiled = flashover.compile(f)
    before = flashover.compile_stats()
    with torch.no_grad():
        for i in range(1, 60):
            x, mask = torch.randn(12, 4), torch.arange(12) < (2 if i % (every + 1) == 0 else 9)
            state, want = torch.zeros(4), torch.zeros(4)
            assert (wrong := differ(compiled(state, x, mask), f(want, x, mask), rtol=1e-5, atol=1e-5)) == "", wrong
            assert torch.equal(state, want)
    after = flashover.compile_stats()
    assert after["graph_breaks"] - before["graph_breaks"] == (1 if every == 1 else 0)
    assert after["eager_calls"] == before["eager_calls"]


def test_a_number_of_data_that_python_needs_breaks_before_it_is_found() -> None:
    def f(x: Tensor, m: Tensor) -> Tensor:
        found = x[m]
        if found.shape[0] > 3:
            return found.sum(0) * (3 if found.sum().item() > 0 else 5)
        return found.sum(0)

    flashover.reset()
    compiled = flashover.compile(f)
    with torch.no_grad():
        for mask in masks(12).values():
            x = torch.randn(12, 4)
            assert (wrong := differ(compiled(x, mask), f(x, mask), rtol=1e-5, atol=1e-5)) == "", wrong


def test_python_that_decides_by_data_breaks_as_before() -> None:
    def f(x: Tensor, m: Tensor) -> Tensor:
        n = m.sum().item()
        return x * 2 if n > 5 else x + n

    flashover.reset()
    compiled = flashover.compile(f)
    with torch.no_grad():
        for mask in masks(12).values():
            x = torch.randn(12, 4)
            assert torch.equal(compiled(x, mask), f(x, mask))


def test_each_way_that_python_takes_is_a_version_of_a_whole_graph() -> None:
    def f(state: Tensor, x: Tensor, m: Tensor) -> Tensor:
        state.add_(1)
        n = m.sum().item()
        if n > 5:
            return x * 2 + state
        return x[m].sum(0) - state if x[m].shape[0] == 0 else x[m].sum(0) + n

    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True)
    before, eager = flashover.compile_stats()["graphs"], flashover.compile_stats()["eager_calls"]
    with torch.no_grad():
        for _ in range(3):
            for mask in masks(12).values():
                state, want, x = torch.zeros(4), torch.zeros(4), torch.randn(12, 4)
                assert (wrong := differ(compiled(state, x, mask), f(want, x, mask), rtol=1e-5, atol=1e-5)) == "", wrong
                assert torch.equal(state, want)
    assert flashover.compile_stats()["graphs"] - before == 3
    assert flashover.compile_stats()["eager_calls"] == eager


def test_past_the_third_case_calls_run_eager() -> None:
    def f(x: Tensor, m: Tensor) -> Tensor:
        n = m.sum().item()
        for k in range(6):
            if n == k:
                return x * (k + 1)
        return x - 1

    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True, options={"eager_warning": False})
    before, eager = flashover.compile_stats()["graphs"], flashover.compile_stats()["eager_calls"]
    with torch.no_grad():
        for n in (9, 0, 1, 2, 3, 4, 5, 6, 3, 9):
            x, mask = torch.randn(12, 4), torch.arange(12) < n
            assert torch.equal(compiled(x, mask), f(x, mask))
    assert flashover.compile_stats()["graphs"] - before <= 8
    assert flashover.compile_stats()["eager_calls"] > eager


def test_a_number_that_is_returned() -> None:
    def f(x: Tensor, m: Tensor) -> tuple[int, Tensor]:
        return m.sum().item(), x * 2

    compiled = flashover.compile(f)
    for mask in masks(12).values():
        x = torch.randn(12, 4)
        (got, twice), (want, _) = compiled(x, mask), f(x, mask)
        assert got == want
        assert torch.equal(twice, x * 2)


def test_a_loop_over_what_was_found_is_a_version_a_length() -> None:
    def f(x: Tensor, labels: Tensor) -> Tensor:
        out = torch.zeros(4)
        for label in torch.unique(labels):
            out = out + x[labels == label].sum(0) * label
        return out

    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True, options={"eager_warning": False})
    before = flashover.compile_stats()
    with torch.no_grad():
        for labels in (3, 3, 2, 3, 4, 2, 6):
            x = torch.randn(12, 4)
            assert torch.allclose(compiled(x, torch.arange(12) % labels), f(x, torch.arange(12) % labels), atol=1e-5)
    assert flashover.compile_stats()["graphs"] - before["graphs"] == 3
    assert flashover.compile_stats()["eager_calls"] - before["eager_calls"] == 1, "past the third length"


def test_what_finds_a_size_takes_a_size_that_changes() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.bincount(x, minlength=x.shape[0]) * 2

    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True, dynamic=True)
    before = flashover.compile_stats()["graphs"]
    with torch.no_grad():
        for n in (5, 9, 2, 40):
            x = torch.randint(0, 20, (n,))
            assert torch.equal(compiled(x), f(x))
    assert flashover.compile_stats()["graphs"] - before == 1


def test_gradients_through_a_mask() -> None:
    def f(x: Tensor, m: Tensor) -> Tensor:
        return (x[m] * 2).sum()

    compiled = flashover.compile(f)
    for mask in masks(12).values():
        x = torch.randn(12, 4, requires_grad=True)
        compiled(x, mask).backward()
        assert torch.equal(x.grad, mask.unsqueeze(1).expand(12, 4) * 2.0)


def test_a_second_compile_takes_the_plan_from_the_cache(tmp_path: Any) -> None:
    def f(x: Tensor, m: Tensor) -> Tensor:
        return torch.tanh(x[m] * 3).sum(0) + x[~m].sum(0)

    options = {"cache_dir": str(tmp_path)}
    x = torch.randn(12, 4)
    for time in range(2):
        flashover.reset()
        before = flashover.compile_stats()["cache_hits"]
        compiled = flashover.compile(f, fullgraph=True, options=options)
        with torch.no_grad():
            for mask in masks(12).values():
                assert (wrong := differ(compiled(x, mask), f(x, mask), rtol=1e-5, atol=1e-5)) == "", wrong
        assert flashover.compile_stats()["cache_hits"] - before == time


@pytest.mark.parametrize("trains", [False, True])
def test_operator_by_operator(trains: bool) -> None:
    """What the backend "eager" runs knows such sizes once their operator ran."""

    def f(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        rows, columns = torch.where(x > 0.5)
        out.index_add_(0, rows, x[rows, columns][:, None].expand(rows.shape[0], 2) * 2)
        return x[rows].reshape(-1, 2, 2).sum(1) + out.sum()

    compiled = flashover.compile(f, backend="eager", fullgraph=True)
    for seed in range(3):
        x = torch.rand(5, 4, generator=torch.Generator(torch.get_default_device()).manual_seed(seed))
        a, b = (x.clone().requires_grad_(trains) for _ in range(2))
        one, other = torch.zeros(5, 2), torch.zeros(5, 2)
        y, z = f(a, one), compiled(b, other)
        torch.testing.assert_close(y, z)
        torch.testing.assert_close(one, other)
        if trains:
            y.square().sum().backward()
            z.square().sum().backward()
            torch.testing.assert_close(a.grad, b.grad)


def test_more_than_can_be_found() -> None:
    """Of 5 elements not as many are chosen as a list of 8 has: the one that is chosen is for all of them."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        chosen = x[x > 0]
        return torch.where(y > chosen, y, chosen)

    compiled = flashover.compile(f, dynamic=True)
    before = flashover.compile_stats()["eager_calls"]
    for x, rows in (([1.0, -1, -1, -1, -1], 8), ([1.0, 2, 3, -1, -1], 3), ([-1.0, -1, -1, -1, 2], 8)):
        given = torch.tensor(x), torch.randn(rows)
        torch.testing.assert_close(compiled(*given), f(*given))
    assert flashover.compile_stats()["eager_calls"] == before


def test_a_count_of_what_is_known_beforehand() -> None:
    """What an operator that finds a size reads is a part of something that does not depend on the call."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        spread = torch.var_mean(x.float(), 0, correction=0)[1]
        none = (spread > spread).float()
        counts = torch.bincount(torch.exp(none.clamp(max=4)).clamp(max=4).long().flatten())
        return x.masked_scatter(x > 0, x.flatten()), counts.sum(), none.unsqueeze(0)

    compiled = flashover.compile(f, dynamic=True, fullgraph=True)
    before = flashover.compile_stats()["eager_calls"]
    for n in (33, 0, 5):
        x = torch.randint(-4, 4, (n,), dtype=torch.int16)
        for got, want in zip(compiled(x), f(x), strict=True):
            assert torch.equal(got, want)
    assert flashover.compile_stats()["eager_calls"] == before


def test_the_last_size_follows_from_the_others() -> None:
    """It is found where no new size is, by the step in front of the products that know all of them."""

    def f(x: Tensor, w: Tensor, counts: Tensor) -> Tensor:
        sizes = counts.tolist()
        y = torch.cat([part @ w for part in x.split(sizes)])
        return torch.cat([part.sin() @ w for part in y.split(sizes)])

    compiled = flashover.compile(f, fullgraph=True)
    for counts in ([3, 4, 3], [1, 0, 9]):
        x, w = torch.randn(10, 4), torch.randn(4, 4)
        torch.testing.assert_close(compiled(x, w, torch.tensor(counts)), f(x, w, torch.tensor(counts)))


@pytest.mark.parametrize("trains", [False, True])
def test_of_nothing_nothing_is_found(trains: bool) -> None:
    """The size is known to be 0 there: an index of so many elements into no rows is none out of range."""

    def f(x: Tensor, counts: Tensor) -> tuple[Tensor, ...]:
        repeated = torch.repeat_interleave(counts)
        return x[x > 0] * 2, x.masked_select(x < 0).sum(), x.nonzero(), repeated, x.detach().unique()

    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()["eager_calls"]
    for n in (3, 5, 0, 4):
        x, counts = torch.randn(n, 4, requires_grad=trains), torch.arange(n)
        got, want = compiled(x, counts), f(x, counts)
        for a, b in zip(got, want, strict=True):
            assert a.shape == b.shape and a.stride() == b.stride()
            torch.testing.assert_close(a, b)
    assert flashover.compile_stats()["eager_calls"] == before
