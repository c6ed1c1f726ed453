"""A graph that raises while it runs: what the program did before stays done, and nothing else happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import flashover


def embeds(log: list[str], buffer: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    log.append("begins")
    buffer.add_(x.sum())
    log.append("counted")
    y = F.embedding(i, x)
    buffer.mul_(2)
    log.append("embedded")
    return y * buffer.sum()


def factors(log: list[str], buffer: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    log.append("begins")
    buffer.copy_(x[0, :3])
    a = x @ x.T - 4.0 * (i.max() > 3) * torch.eye(4)
    log.append("factors")
    y = torch.linalg.cholesky(a)
    log.append("done")
    buffer[0] = 7
    return y + buffer[0]


def draws(log: list[str], buffer: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    log.append("begins")
    noise = torch.rand(3)
    log.append("drawn")
    y = F.nll_loss(F.log_softmax(x, 1), i)
    buffer.add_(noise)
    return y + noise


def in_place(log: list[str], buffer: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    buffer += 1
    log.append("plus one")
    buffer.index_put_((i,), torch.tensor(5.0))
    log.append("put")
    return buffer * x[0, 0]


def state(f: Callable[..., Any], good_first: bool, training: bool) -> list[Any]:
    out: list[Any] = []
    log: list[str] = []
    buffer = torch.zeros(3)
    torch.manual_seed(3)
    x = torch.eye(4) * 1.5 + 0.01 * torch.arange(16.0).reshape(4, 4)
    x.requires_grad_(training)
    good, bad = torch.tensor([0, 1, 2, 1]), torch.tensor([0, 1, 9, 1])
    for i in [good, bad, good, bad, bad, good] if good_first else [bad, good, bad]:
        try:
            out.append(f(log, buffer, x, i).detach().clone())
        except (RuntimeError, IndexError) as error:
            out.append(type(error))
        out += [list(log), buffer.clone(), torch.get_rng_state()]
    return out


@pytest.mark.timeout(120)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("program", [embeds, factors, draws, in_place])
def test_what_was_done_before_stays(program: Callable[..., Any], training: bool) -> None:
    for good_first in (True, False):
        expected = state(program, good_first, training)
        got = state(flashover.compile(program), good_first, training)
        for k, (a, b) in enumerate(zip(expected, got, strict=True)):
            if isinstance(a, torch.Tensor):
                torch.testing.assert_close(b, a, msg=lambda m, k=k: f"{k}: {m}")
            else:
                assert a == b, k


@pytest.mark.timeout(60)
@pytest.mark.parametrize("program", [embeds, in_place])
def test_it_was_compiled(program: Callable[..., Any]) -> None:
    compiled = flashover.compile(program, fullgraph=True)
    for i in (torch.tensor([0, 1]), torch.tensor([0, 9])):
        log: list[str] = []
        try:
            compiled(log, torch.zeros(3), torch.eye(4), i)
        except IndexError:
            assert i[1] == 9
        assert log[0] in ("begins", "plus one")
    assert flashover.compile_stats()["frames"] > 0


# Operators that refuse what their operands hold: a number that the last one does not take.
REFUSING: dict[str, tuple[Callable[..., Any], int]] = {
    "floor_divide": (lambda x, i: i // i, 0),
    "divide_in_place": (lambda x, i: i.clone().div_(i, rounding_mode="trunc"), 0),
    "remainder": (lambda x, i: 7 % i, 0),
    "fmod": (lambda x, i: torch.fmod(i, i), 0),
    "indices": (lambda x, i: x[i], 9),
    "gather": (lambda x, i: x.gather(0, i[None]), 9),
    "embedding": (lambda x, i: F.embedding(i, x), 9),
    "put": (lambda x, i: x.clone().index_put_((i,), x[0]).zero_(), 9),
    "one_hot": (lambda x, i: F.one_hot(i, 4), 9),
    "nll_loss": (lambda x, i: F.nll_loss(x, i), 9),
    "eigenvalues": (lambda x, i: torch.linalg.eigh(x / (i.max() - 7)), 7),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("operator", REFUSING)
def test_what_nobody_reads_raises(operator: str, training: bool) -> None:
    call, refused = REFUSING[operator]

    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        unread = call(x, i)
        del unread
        return x * 2

    compiled = flashover.compile(f)
    x = torch.eye(4, requires_grad=training)
    good, bad = torch.tensor([1, 2, 3, 1]), torch.tensor([1, 2, 3, refused])
    for i in (good, bad, good, bad):
        if i is good:
            torch.testing.assert_close(compiled(x, i), f(x, i))
            continue
        with pytest.raises((RuntimeError, IndexError)) as eager:
            f(x, i)
        with pytest.raises(eager.type) as raised:
            compiled(x, i)
        assert str(raised.value) == str(eager.value)


PARTLY_READ: dict[str, Callable[..., Any]] = {
    "row": lambda x, i: x[i][:1] + 1,
    "row of a sum": lambda x, i: (F.embedding(i, x) + 1)[0],
    "column": lambda x, i: x.gather(0, i[:, None]).reshape(2, 2)[0] * 2,
    "chunk": lambda x, i: x.index_select(0, i).chunk(2)[0] * 2,
    "size": lambda x, i: torch.zeros_like(x[i] * 2),
    "weight of a loss": lambda x, i: torch.ops.aten.nll_loss_forward(x, i, None, 1, -100)[1] + 1,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("program", PARTLY_READ)
def test_what_is_read_in_part_raises(program: str) -> None:
    f = PARTLY_READ[program]
    compiled = flashover.compile(f)
    x, good = torch.eye(4), torch.tensor([1, 2, 3, 1])
    torch.testing.assert_close(compiled(x, good), f(x, good))
    with pytest.raises((RuntimeError, IndexError), match="out of"):
        compiled(x, torch.tensor([1, 2, 3, 9]))


ROWS = 1 << 18  # of 4 numbers: 4 MiB, too much for a copy on every call


def beside(log: list[str], state: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    log.append("begins")
    state.add_(1)
    log.append("counted")
    return F.embedding(i, x) + state[:4]


def own_rows(log: list[str], state: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    log.append("begins")
    state.mul_(2).add_(1)
    log.append("counted")
    return F.embedding(i, state) * x


def puts_rows(log: list[str], state: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    log.append("begins")
    state.index_copy_(0, i, x)
    log.append("put")
    return state[:5].sum(0) @ x


def puts_some(log: list[str], state: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    y = state[:4] + x
    state[i] = y * 2
    log.append("put")
    state[:, 1] = 1  # of what it is now
    return state[:5].sum(0) + y


def puts_its_own(log: list[str], state: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    state.index_copy_(0, i, state[:4] + x)
    log.append("put")
    return state.index_copy_(1, i[:2], state[:, 2:]) * 2


def puts_a_part(log: list[str], state: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    state[3:7] = x
    log.append("put")
    return state[i.int().clamp(min=1)] * x


def computed(log: list[str], state: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    state.add_(x.sum())
    log.append("counted")
    return x[i % (ROWS - 8) * 2 // 2]  # too much arithmetic to see it before


def not_positive(log: list[str], state: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    state[1] = x[1]
    log.append("put")
    y = state[:4] * 2
    z = torch.linalg.cholesky(x @ x.T - 4.0 * (i.max() > 3) * torch.eye(4))
    log.append("factored")
    return y + z


def own_place(log: list[str], state: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    log.append("begins")
    state.index_copy_(0, i, x)
    i.add_(1)
    log.append("moved")
    return state[i] + torch.rand(4)


def large(f: Callable[..., Any], training: bool) -> list[Any]:
    out: list[Any] = []
    log: list[str] = []
    state = torch.zeros(ROWS, 4)
    torch.manual_seed(3)
    x = torch.eye(4) * 1.5 + 0.01 * torch.arange(16.0).reshape(4, 4)
    x.requires_grad_(training)
    good, bad = torch.tensor([1, 2, 3, 1]), torch.tensor([1, 2, ROWS, 1])
    for i in [good, good, bad, good, bad, bad, good]:
        state.detach_()
        i = i.clone()
        try:
            out.append(f(log, state, x, i).detach().clone())
        except (RuntimeError, IndexError) as error:
            out.append(type(error))
        out += [list(log), state.detach().clone(), i, torch.get_rng_state()]
    return out


LARGE = [beside, own_rows, puts_rows, puts_some, puts_its_own, puts_a_part, computed, not_positive, own_place]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("program", LARGE)
def test_what_was_done_before_a_large_write_is_undone_stays(program: Callable[..., Any], training: bool) -> None:
    expected = large(program, training)
    assert any(isinstance(a, type) for a in expected)
    for k, (a, b) in enumerate(zip(expected, large(flashover.compile(program), training), strict=True)):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(b, a, msg=lambda m, k=k: f"{k}: {m}")
        else:
            assert a == b, k


@pytest.mark.timeout(60)
@pytest.mark.parametrize("program", [beside, own_rows, puts_rows, puts_a_part, not_positive])
def test_calls_that_do_not_raise_keep_no_copies(program: Callable[..., Any]) -> None:
    compiled = flashover.compile(program, fullgraph=True)
    args = torch.zeros(ROWS, 4), torch.eye(4), torch.tensor([1, 2, 3, 1])
    for _ in range(2):
        compiled([], *args)
    with torch.profiler.profile(profile_memory=True) as profile:
        compiled([], *args)
    largest = max((e.cpu_memory_usage for e in profile.events()), default=0)
    assert largest < ROWS


@pytest.mark.timeout(60)
def test_kernels_that_run_side_by_side_do_not_write_where_one_fails() -> None:
    @flashover.compile
    def f(buffers: list[torch.Tensor], x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        y = x[i * i]
        for b in buffers:
            b.add_(1)
        return y

    buffers = [torch.zeros(30000 + k) for k in range(9)]
    for i in (1, 1, 2, 2):
        if i == 1:
            f(buffers, torch.arange(4.0), torch.tensor([0, i]))
        else:
            with pytest.raises(IndexError):
                f(buffers, torch.arange(4.0), torch.tensor([0, i]))
    assert [b.unique().tolist() for b in buffers] == [[2.0]] * 9
