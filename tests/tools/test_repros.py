"""Every program of tests/repros holds, or is a documented limit that still stands (tools/repros.py)."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "tools" / "repros.py"
Run = Callable[[Path], dict[str, Any]]


def _runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("repros", RUNNER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["repros"] = module  # its dataclasses look themselves up by name
    spec.loader.exec_module(module)
    return module


repros = _runner()


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs the program at a path in a child of one process that has imported torch, and says how it ended."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, str(RUNNER), "--serve"], text=True, cwd=ROOT, **pipes) as server:  # type: ignore[call-overload]

        def ask(path: Path) -> dict[str, Any]:
            server.stdin.write(f"{path}\n")
            server.stdin.flush()
            return json.loads(server.stdout.readline())

        yield ask
        server.stdin.close()


@pytest.mark.parametrize(
    "program", [pytest.param(p, id=p.name, marks=pytest.mark.timeout(p.limit + 60)) for p in repros.programs()]
)
def test_holds(program: Any, run: Run) -> None:
    outcome = run(program.path)
    if outcome["verdict"] == "left out":
        pytest.skip(outcome["detail"])
    assert outcome["verdict"] in ("ok", "open"), outcome["detail"]


def test_a_program_that_fails_is_seen(tmp_path: Path, run: Run) -> None:
    (tmp_path / "wrong.py").write_text('"""Never holds."""\nassert 1 == 2\n')
    (tmp_path / "slow.py").write_text('"""Never ends."""\n# limit: 0.2\nwhile True: pass\n')
    (tmp_path / "fresh.py").write_text('"""Never holds."""\n# process: fresh\nraise SystemExit(3)\n')
    seen = {name: run(tmp_path / f"{name}.py") for name in ("wrong", "slow", "fresh")}
    assert {name: o["verdict"] for name, o in seen.items()} == dict.fromkeys(seen, "FAILED")
    assert "AssertionError" in seen["wrong"]["detail"] and "no end" in seen["slow"]["detail"]
    assert "exit code 3" in seen["fresh"]["detail"]


def test_an_open_limit_must_be_named_and_must_fail() -> None:
    unnamed = repros.Program(repros.FOLDER / "no_such_limit.py", open_page="docs/user/graph-breaks.md")
    assert "does not name" in repros.judge(unnamed, 1, "", 0.0).detail
    page = ROOT / "docs" / "user" / "graph-breaks.md"
    holds = repros.judge(repros.Program(page, open_page="docs/user/graph-breaks.md"), 0, "", 0.0)
    assert holds.verdict == "FAILED"
