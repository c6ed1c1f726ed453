"""nn.RNN, nn.LSTM and nn.GRU on the CPU: one operator a layer and direction, over any number of steps and sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from comparing import differ
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import flashover

KINDS: dict[str, Callable[..., nn.Module]] = {
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="relu", **kwargs),
    "lstm": nn.LSTM,
}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers, both directions": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "without biases": {"bias": False},
    "f64": {"dtype": torch.float64},
}


def flat(results: tuple[Any, Any]) -> tuple[Tensor, ...]:
    y, states = results
    return (y, *states) if isinstance(states, tuple) else (y, states)


def run(module: nn.Module, f: Callable[..., tuple[Tensor, ...]], args: tuple[Any, ...], trains: bool) -> list[Tensor]:
    """Results, and gradients of what they depend on."""
    if not trains:
        with torch.no_grad():
            return list(f(*args))
    module.zero_grad()
    x = args[0].clone().requires_grad_()
    results = f(x, *args[1:])
    sum((r.square() * (i + 1)).sum() for i, r in enumerate(results) if r.is_floating_point()).backward()
    return [*results, x.grad, *(p.grad for p in module.parameters())]


def check(module: nn.Module, f: Callable[..., tuple[Tensor, ...]], calls: list[tuple[Any, ...]], trains: bool) -> int:
    """How many graphs it took."""
    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()
    for args in calls:
        got, want = run(module, compiled, args, trains), run(module, f, args, trains)
        assert (wrong := differ(got, want, rtol=1e-4, atol=1e-5, strides=False)) == "", wrong
    after = flashover.compile_stats()
    assert after["eager_calls"] == before["eager_calls"]
    return after["graphs"] - before["graphs"]


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_steps_and_sequences(kind: str, form: str, trains: bool) -> None:
    module = KINDS[kind](6, 5, **FORMS[form])
    dtype = FORMS[form].get("dtype", torch.float32)
    calls = [(torch.randn(t, b, 6, dtype=dtype),) for t, b in [(7, 3), (9, 4), (4, 5), (12, 2), (3, 17)]]
    assert check(module, lambda x: flat(module(x)), calls, trains) <= 2


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
def test_states_of_the_program(trains: bool) -> None:
    module = nn.GRU(6, 5, num_layers=2)
    calls = [(torch.randn(t, 3, 6), torch.randn(2, 3, 5)) for t in (7, 9, 4)]
    assert check(module, lambda x, h: flat(module(x, h)), calls, trains) <= 2


def test_long_sequences_are_few_kernels() -> None:
    module = nn.GRU(8, 8)
    flashover.reset()
    before = flashover.compile_stats()["kernels"]
    with torch.no_grad():
        flashover.compile(module, fullgraph=True)(torch.randn(1024, 2, 8))
    assert flashover.compile_stats()["kernels"] - before < 20


def test_infinities_and_nan_pass() -> None:
    module = nn.RNN(1, 20, nonlinearity="relu", bias=False)
    with torch.no_grad():
        x = torch.tensor([1.0, float("inf"), float("nan")]).view(3, 1, 1)
        got, want = flashover.compile(module)(x)[0], module(x)[0]
        assert torch.equal(got.isnan(), want.isnan())
        for wide in (30.0, 200.0, -200.0, 1e-4):
            gates, far = nn.GRU(1, 9), torch.full((2, 1, 1), wide)
            torch.testing.assert_close(flashover.compile(gates)(far)[0], gates(far)[0])


def test_differentiated_twice() -> None:
    module, x = nn.GRU(6, 5), torch.randn(4, 3, 6)

    def penalty(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(module(x)[0].sum(), x, create_graph=True)
        return slope.square().sum()

    for f in (penalty, flashover.compile(penalty)):
        module.zero_grad()
        f(x).backward()
        if f is penalty:
            want = [p.grad for p in module.parameters() if p.grad is not None]
    got = [p.grad for p in module.parameters() if p.grad is not None]
    assert (wrong := differ(got, want, rtol=1e-4, atol=1e-5, strides=False)) == "", wrong


@pytest.mark.parametrize("option", ["strict_numerics", "batch_invariant"])
def test_promises_of_numerics_are_kept(option: str) -> None:
    module, x = nn.GRU(6, 5), torch.randn(9, 3, 6)
    compiled = flashover.compile(module, options={option: True})
    with torch.no_grad():
        y = compiled(x)[0]
        same = y if option == "strict_numerics" else compiled(x[:, :1])[0]
        assert torch.equal(same, module(x)[0] if option == "strict_numerics" else y[:, :1])


def lengths_of(sorted_already: bool) -> list[tuple[Tensor, Tensor]]:
    calls = []
    for steps, lengths in [(9, [7, 5, 2]), (7, [5, 4, 4, 1]), (9, [8, 8, 4]), (6, [6, 3, 3]), (5, [4, 2])]:
        order = torch.tensor(lengths)
        if not sorted_already:
            order = order[torch.randperm(len(lengths), generator=torch.Generator().manual_seed(steps))]
        calls.append((torch.randn(steps, len(lengths), 6), order))
    return calls


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("sorted_already", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_of_any_lengths(kind: str, sorted_already: bool, trains: bool) -> None:
    module = KINDS[kind](6, 5, bidirectional=True)

    def f(x: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        y, states = module(pack_padded_sequence(x, lengths, enforce_sorted=sorted_already))
        padded, known = pad_packed_sequence(y)
        return (padded, known, *flat((padded, states))[1:])

    assert check(module, f, lengths_of(sorted_already), trains) <= 3


@pytest.mark.parametrize("sorted_already", [False, True])
def test_lengths_in_a_list(sorted_already: bool) -> None:
    module = nn.LSTM(6, 5)

    def f(x: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
        y, (h, _) = module(pack_padded_sequence(x, lengths, enforce_sorted=sorted_already))
        return pad_packed_sequence(y)[0], h

    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()["graphs"]
    with torch.no_grad():
        for steps, lengths in [(9, [7, 5, 2]), (7, [5, 4, 4]), (9, [8, 8, 4]), (6, [6, 3, 3]), (5, [4, 2, 2])]:
            lengths = lengths if sorted_already else lengths[::-1]
            x = torch.randn(steps, 3, 6)
            torch.testing.assert_close(compiled(x, lengths), f(x, lengths))
    assert flashover.compile_stats()["graphs"] - before <= 3


def test_wrong_lengths_raise_as_in_eager() -> None:
    module = nn.GRU(6, 5)

    def f(x: Tensor, lengths: Tensor) -> Tensor:
        return pad_packed_sequence(module(pack_padded_sequence(x, lengths))[0])[0]

    compiled = flashover.compile(f)
    x = torch.randn(7, 3, 6)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, torch.tensor([7, 5, 2])), f(x, torch.tensor([7, 5, 2])))
        for wrong in ([5, 7, 2], [7, 5, 0], [9, 5, 2], [7, 5]):
            with pytest.raises(RuntimeError) as eager:
                f(x, torch.tensor(wrong))
            with pytest.raises(RuntimeError) as got:
                compiled(x, torch.tensor(wrong))
            assert str(got.value) == str(eager.value)


def test_hidden_sizes_that_change_in_training() -> None:
    """One function over layers of several widths, whose weights change with them."""

    def f(module: nn.LSTM, x: Tensor) -> Tensor:
        return module(x)[0]

    compiled = flashover.compile(f)
    for hidden in (4, 5, 6):
        module, x = nn.LSTM(3, hidden), torch.randn(5, 1, 3)
        got, want = compiled(module, x), f(module, x)
        torch.testing.assert_close(got, want)
        mine = torch.autograd.grad(got.sum(), list(module.parameters()))
        torch.testing.assert_close(mine, torch.autograd.grad(want.sum(), list(module.parameters())))
