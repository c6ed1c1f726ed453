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
