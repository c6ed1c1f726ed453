"""Logs go through Python's logging, a logger for each topic."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from interpreters import python

import flashover
from flashover import _C


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    yield
    flashover.set_logs(os.environ.get("FLASHOVER_LOGS", ""))


def breaks(x: torch.Tensor) -> torch.Tensor:
    print(end="")
    return x + 1


def test_set_logs_writes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    flashover.set_logs("breaks")
    flashover.compile(breaks, backend="eager")(torch.ones(3))
    assert "[flashover breaks] breaks: graph break: call of print at " in capsys.readouterr().err
    flashover.set_logs()
    flashover.compile(breaks, backend="eager")(torch.ones(3))
    assert "[flashover" not in capsys.readouterr().err


def test_a_level_hands_them_to_the_programs_handlers(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger("flashover.breaks").setLevel(logging.INFO)
    flashover.compile(breaks, backend="eager")(torch.ones(3))
    (record,) = [r for r in caplog.records if r.name.startswith("flashover.")]
    assert record.name == "flashover.breaks" and record.levelno == logging.INFO
    assert record.getMessage().startswith("breaks: graph break: call of print at ")
    assert "[flashover" not in capsys.readouterr().err
    logging.getLogger("flashover.breaks").setLevel(logging.WARNING)
    flashover.compile(breaks, backend="eager")(torch.ones(3))
    assert len([r for r in caplog.records if r.name.startswith("flashover.")]) == 1


def test_training_logs_its_plans(capsys: pytest.CaptureFixture[str]) -> None:
    flashover.set_logs(plan=True)
    flashover.compile(torch.nn.Linear(4, 4))(torch.ones(2, 4)).sum().backward()
    err = capsys.readouterr().err
    assert "Linear, plan_forward:" in err and "Linear, plan_backward:" in err


def test_a_handler_that_fails_harms_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(topic: str, text: str) -> None:
        raise KeyError(topic)

    from flashover import _logs

    flashover.set_logs("breaks")
    _C.set_log_sink(fails)
    try:
        assert torch.equal(flashover.compile(breaks, backend="eager")(torch.ones(3)), torch.full((3,), 2.0))
    finally:
        _C.set_log_sink(_logs._sink)


def test_an_unknown_topic_is_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match="no topic 'recompile'; did you mean 'recompiles'"):
        flashover.set_logs("recompile,breaks")
    program = "import flashover; print('runs')"
    env = os.environ | {"FLASHOVER_LOGS": "nonsense,breaks"}
    done = python("-c", program, env=env)
    assert done.returncode == 0 and done.stdout == "runs\n" and "no topic 'nonsense'" in done.stderr


def test_a_level_from_before_the_import_counts() -> None:
    program = (
        "import logging, sys\nlogging.basicConfig(stream=sys.stdout, format='%(name)s')\n"
        "logging.getLogger('flashover.graph').setLevel(logging.INFO)\nimport torch, flashover\n"
        "flashover.compile(lambda x: x + 1, backend='eager')(torch.ones(2))\n"
    )
    done = python("-c", program)
    assert done.returncode == 0 and done.stdout.splitlines() == ["flashover.graph"]


def test_names_of_torchs(capsys: pytest.CaptureFixture[str]) -> None:
    torch._logging.set_logs(graph_breaks=True)
    try:
        flashover.compile(breaks, backend="eager")(torch.ones(3))
        assert "[flashover breaks] breaks: graph break: call of print at " in capsys.readouterr().err
    finally:
        torch._logging.set_logs()
    flashover.compile(breaks, backend="eager")(torch.ones(3))
    assert "[flashover" not in capsys.readouterr().err


def test_names_of_torchs_leave_the_levels_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("flashover.recompiles").setLevel(logging.INFO)
    torch._logging.set_logs(graph_breaks=True)
    try:
        flashover.compile(breaks, backend="eager")
        assert logging.getLogger("flashover.recompiles").level == logging.INFO
    finally:
        torch._logging.set_logs()


def test_torch_logs_in_the_environment() -> None:
    code = "import torch, flashover; flashover.compile(lambda x: x + 1, backend='eager')(torch.ones(2))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TORCH_LOGS": "graph_code"}, capture_output=True, text=True,
        timeout=170, check=True,
    )  # fmt: skip
    assert "[flashover graph]" in done.stderr and "aten.add" in done.stderr
