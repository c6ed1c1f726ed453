"""A slice of fuzz_guards.py: after any change between two calls the compiled result is eager's, and a change that the
program cannot see compiles nothing again."""

import gc

import pytest
import torch
from fuzz_guards import SHAPES, Report, kinds, run_sequence
from guard_features import FEATURES

import flashover


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    flashover.reset()
    gc.collect()


@pytest.mark.parametrize("part", range(8))
def test_sequences(part):
    report = Report()
    for seed in range(part * 30, part * 30 + 30):
        run_sequence(seed, report, steps=5)
    assert not report.failures, "\n".join(report.failures[:3])
    assert report.calls > 100


@pytest.mark.parametrize("name", [f.name for f in FEATURES])
def test_each_feature(name):
    report = Report()
    for seed in range(100_000, 100_002):
        run_sequence(seed, report, only=name, steps=8)
    assert not report.failures, "\n".join(report.failures[:3])


@pytest.mark.parametrize("shape", SHAPES[1:])
def test_sequences_with_breaks(shape):
    report = Report()
    for seed in range(200_000, 200_010):
        run_sequence(seed, report, steps=5, shape=shape)
    assert not report.failures, "\n".join(report.failures[:3])
    assert report.calls > 40


def test_a_hook_with_a_cell_after_a_break():
    """The backward of a resumed frame calls it without a caller: its names were taken for that frame's (a crash)."""
    report = Report()
    run_sequence(7100594, report)
    assert not report.failures, "\n".join(report.failures)


def test_enough_kinds_of_changes():
    assert len(kinds()) >= 100


def test_a_dropped_guard_is_noticed(monkeypatch):
    """The fuzzer can fail: calls answered by the first entry whatever has changed since."""
    failures = 0
    for seed in range(12):
        report = Report()

        def frozen(call, **_):
            seen = []

            def answer(*args, **kwargs):
                if not seen:
                    seen.append(call(*args, **kwargs))
                return seen[0]

            answer.entries = list
            made = type("Frozen", (), {"__call__": staticmethod(answer), "_flashover_callable": answer})()
            made.entries = list
            return made

        monkeypatch.setattr(flashover, "compile", frozen)
        run_sequence(seed, report, steps=5)
        failures += bool(report.failures)
    assert failures > 6


class Held:
    scale = torch.ones(2)


def moving_things(model):
    """What a program reads beside its model, and how that becomes another object on each call."""
    cell, items, held = torch.ones(2), [torch.ones(2), 2], Held()
    pair = (torch.ones(2), 1)
    held.deep = [torch.ones(2)]

    def in_a_cell(x):
        return model(x) * cell

    def move_cell(k):
        nonlocal cell
        cell = torch.full((2,), float(k))

    def in_a_list(x):
        return model(x) * items[0]

    def move_item(k):
        items[0] = torch.full((2,), float(k))

    def in_a_tuple(x):
        return model(x) * pair[0] + pair[1]

    def move_tuple(k):
        nonlocal pair
        pair = (torch.full((2,), float(k)), 1)

    def of_a_class(x):
        return model(x) * Held.scale

    def move_class(k):
        Held.count = k
        Held.scale = torch.full((2,), float(k))

    def of_an_object(x):
        return model(x) * held.deep[0]

    def move_object(k):
        nonlocal held
        held = Held()
        held.deep = [torch.full((2,), float(k))]

    def of_its_attribute(x):
        return model(x) * held.deep[0]

    def move_attribute(k):
        held.deep = [torch.full((2,), float(k))]

    return [
        (in_a_cell, move_cell),
        (in_a_list, move_item),
        (in_a_tuple, move_tuple),
        (of_a_class, move_class),
        (of_an_object, move_object),
        (of_its_attribute, move_attribute),
    ]


@pytest.mark.parametrize("which", range(6))
def test_what_keeps_moving_leaves_the_rest_fast(which):
    """One object that is another one on each call had the whole model's guards checked one by one."""
    model = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(8)])
    program, move = moving_things(model)[which]
    fast, x = flashover.compile(program, backend="eager"), torch.ones(2)
    for k in range(24):
        move(k % 5)  # objects come back
        torch.testing.assert_close(fast(x), program(x))
    (entry,) = fast.entries()
    parts = dict(reversed(p.split(" ", 1)) for p in entry["guard_parts"].split(", "))
    assert int(parts["dicts"]) > 30 and int(parts.get("one by one", 0)) < 12, entry["guard_parts"]
