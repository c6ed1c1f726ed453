"""python -m flashover, and the report of a whole program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from interpreters import fresh, python

import flashover

PACKAGE = Path(flashover.__file__).parent.parent
PROGRAM = """\
import sys
import torch
import flashover


@flashover.compile
def step(x):
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    print("a step")
    y = y.sin()
    flashover.graph_break()
    return y.cos()


model = flashover.compile(torch.nn.Linear(4, 4))

if __name__ == "__main__":
    for n in (3, 3, 5):
        step(torch.ones(n))
    for _ in range(4):
        model(torch.ones(2, 4)).sum().backward()
    print("arguments", sys.argv[1:], __name__)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


def run(*arguments: object, cwd: Path, status: int = 0, start: Any = python, **env: str) -> Any:
    done = start(*arguments, cwd=cwd, env=os.environ | {"PYTHONPATH": str(PACKAGE)} | env)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def command(*arguments: object, cwd: Path, status: int = 0, **env: str) -> str:
    return run("-m", "flashover", *arguments, cwd=cwd, status=status, **env).stdout


def test_env(tmp_path: Path) -> None:
    said = run("-m", "flashover", "env", cwd=tmp_path, start=fresh, FLASHOVER_CACHE_MB="7").stdout
    facts = dict(line.split(maxsplit=1) for line in said.splitlines())
    assert facts["flashover"] == flashover.__version__ and facts["torch"].startswith("2.")
    assert facts["FLASHOVER_CACHE_MB"] == "7" and facts["compiler"]


def test_cache(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    env = {"FLASHOVER_CACHE_DIR": str(folder)}
    (tmp_path / "f.py").write_text("import flashover, torch\nflashover.compile(lambda x: x.sin() + 1)(torch.ones(3))\n")
    run("f.py", cwd=tmp_path, **env)
    assert command("cache", "path", cwd=tmp_path, **env) == f"{folder}\n"
    info = command("cache", "info", cwd=tmp_path, **env)
    assert re.search(r"plan +1 entries", info) and re.search(r"all +[1-9]\d* entries", info)
    command("cache", "export", "c.tar.gz", cwd=tmp_path, **env)
    with tarfile.open(tmp_path / "c.tar.gz") as archive:
        assert any(n.startswith("plan-") for n in archive.getnames())
    assert "files removed" in command("cache", "clear", cwd=tmp_path, **env)
    assert re.search(r"all +0 entries", command("cache", "info", cwd=tmp_path, **env))
    command("cache", "info", cwd=tmp_path, status=1, FLASHOVER_CACHE_DIR="")
    command("cache", "export", cwd=tmp_path, status=2, **env)


def test_options(tmp_path: Path) -> None:
    text = command("options", cwd=tmp_path)
    assert all(f"{name}: " in text for name in flashover.list_options()) and "max-autotune: " in text
    assert command("options", "memory_budget", cwd=tmp_path).startswith("memory_budget: int = '100'")
    wrong = run("-m", "flashover", "options", "memory_budge", cwd=tmp_path, status=2)
    assert "did you mean 'memory_budget'" in wrong.stderr


def test_explain_runs_the_program(script: Path, tmp_path: Path) -> None:
    text = command("explain", "--save", "report", script, "--flag", "3", cwd=tmp_path)
    assert "arguments ['--flag', '3'] __main__" in text
    assert "step is " in text and "Linear is 1 graph" in text and "the report is report/index.html" in text
    assert (tmp_path / "report" / "index.html").exists()


def test_explain_of_a_program_that_fails(tmp_path: Path) -> None:
    file = tmp_path / "fails.py"
    file.write_text(
        "import flashover, sys, torch\nflashover.compile(lambda x: x + 1)(torch.ones(2))\n"
        "if len(sys.argv) > 1: sys.exit(3)\n1 / 0\n"
    )
    done = run("-m", "flashover", "explain", file, cwd=tmp_path, status=1)
    assert "ZeroDivisionError" in done.stderr and "1 graph" in done.stdout
    run("-m", "flashover", "explain", file, "x", cwd=tmp_path, status=3)


def report_of(folder: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return made


def test_a_report_without_code_change(script: Path, tmp_path: Path) -> None:
    done = run(script, cwd=tmp_path, FLASHOVER_REPORT="out")
    assert done.stderr.endswith("the report is " + str(tmp_path / "out" / "index.html") + "\n")
    rows = {c["name"]: c for c in report_of(tmp_path / "out")["callables"]}
    assert set(rows) == {"step", "Linear"}
    assert rows["step"]["calls"] == 3 and rows["step"]["graph_breaks"] >= 3 and rows["step"]["recompiles"] >= 1
    assert rows["Linear"]["calls"] == 4 and rows["Linear"]["graph_breaks"] == 0
    index = (tmp_path / "out" / "index.html").read_text()
    for row in rows.values():
        assert f'href="{row["page"]}"' in index and (tmp_path / "out" / row["page"]).exists()
    assert (
        "program.py:9: if y.sum() &gt; 0:" in index
        and "compiled again" in index
        and "http" not in index.split("<style>")[1]
    )
    events = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    assert [e["started"] for e in events] == sorted(e["started"] for e in events)
    assert {e["name"] for e in events} == set(rows) and any(e["recompiled_for"] for e in events)
    assert any(e["break"] and e["break"]["where"].endswith("program.py:9") for e in events)
    trace = json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]
    whole = [t for t in trace if t["name"].startswith("compile ")]
    assert len(whole) == len(events) and {t["name"] for t in trace} >= {"capture", "guards", "kernels"}
    for stage in (t for t in trace if not t["name"].startswith("compile ")):  # within a compilation
        assert any(
            w["ts"] <= stage["ts"] and stage["ts"] + stage["dur"] <= w["ts"] + w["dur"] * 1.001 + 1 for w in whole
        )


def test_reports_of_processes_lie_beside_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import flashover, os, subprocess, sys, torch\n"
        "flashover.compile(lambda x: x + 1)(torch.ones(2))\n"
        "if len(sys.argv) == 1:\n"
        "    subprocess.run([sys.executable, 'a.py', 'again'], check=True)\n"
        "    if os.fork() == 0:\n        sys.exit()\n    os.wait()\n"
    )
    run("a.py", cwd=tmp_path, FLASHOVER_REPORT="out")
    assert len(list((tmp_path / "out").glob("report.json"))) == 1
    assert len(list((tmp_path / "out").glob("process-*/report.json"))) == 1  # and none of the fork
    run("a.py", "x", cwd=tmp_path, FLASHOVER_REPORT="ranks", RANK="1")
    assert (tmp_path / "ranks" / "rank-1" / "report.json").exists()
    (tmp_path / "b.py").write_text("import flashover\n")
    run("b.py", cwd=tmp_path, FLASHOVER_REPORT="none")
    assert not (tmp_path / "none").exists()


def test_a_folder_that_cannot_be_written_is_one_line(script: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(script, cwd=tmp_path, FLASHOVER_REPORT="file/out")
    assert "FLASHOVER_REPORT: cannot write to" in done.stderr


def test_the_doctors_patches_apply(script: Path, tmp_path: Path) -> None:
    text = command("doctor", "--patch", "all.diff", script, cwd=tmp_path)
    assert re.search(r"^\d+ findings, .* lost \(a graph break takes ", text, re.M)
    assert "program.py:9: if y.sum() > 0:" in text and "torch.where(y.sum() > 0, y + 1, y)" in text
    costs = re.findall(r"^\d+\. ([\d.]+) (us|ms|s): ", text, re.M)
    seconds = [float(n) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[unit] for n, unit in costs]
    assert len(seconds) >= 4 and seconds == sorted(seconds, reverse=True)
    subprocess.run(["patch", "-p0", "-i", "all.diff"], cwd=tmp_path, check=True, capture_output=True)
    again = command("doctor", script, cwd=tmp_path)
    assert again.count("a step") == 3 and "graph break," not in again, again


@pytest.mark.parametrize(
    "branch",
    [
        "if y.sum() > 0:\n        y = f(y)",  # what it calls may do anything
        "if y.sum() > 0:\n        y = y + 1\n        z = 2",
        "if y.sum() > 0:\n        y = y + 1\n    else:\n        z = 2",
        "if False:\n        y = 1\n    elif y.sum() > 0:\n        y = y + 1",
    ],
)
def test_what_is_not_plain_gets_no_patch(branch: str, tmp_path: Path) -> None:
    from flashover._patches import patch_for

    file = tmp_path / "f.py"
    file.write_text(f"import torch\ndef g(y):\n    {branch}\n    return y\n")
    line = 1 + next(i for i, line in enumerate(file.read_text().splitlines()) if "y.sum()" in line)
    assert patch_for("graph break", "data-dependent: x", f"{file}:{line}") is None


def test_bench(tmp_path: Path) -> None:
    file = tmp_path / "b.py"
    file.write_text(
        "import flashover, torch\n\n@flashover.compile\ndef f(x):\n    return (x.sin() * 2).softmax(-1)\n"
        "m = flashover.compile(torch.nn.Linear(8, 8))\n"
        "for _ in range(5):\n    f(torch.ones(64, 64))\n    m(torch.ones(2, 8)).sum().backward()\n"
    )
    lines = command("bench", "--only", "eager,flashover", file, cwd=tmp_path).splitlines()
    rows = {line[:24].strip(): line for line in lines}
    assert set(rows) == {"", "the whole program", "f", "Linear"}
    assert all(rows[name].count("(1st ") == 2 and "x (1st" in rows[name] for name in ("f", "Linear"))
    run("-m", "flashover", "bench", "--only", "tvm", file, cwd=tmp_path, status=2)


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "flashover", "options"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(PACKAGE)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as done:  # fmt: skip
        assert done.stdout is not None and done.stderr is not None
        done.stdout.close()
        assert done.stderr.read() == b"" and done.wait(60) == 128 + 13
