"""The 30 tasks of docs/user/first-hour.md, done as a reader would: files are written, commands are run, and what the
page says that they print is looked for."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from interpreters import python

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "user" / "first-hour.md").read_text()
MAY_FAIL = {"28"}  # there is no fault to be found


@dataclass
class Task:
    number: str
    title: str
    files: dict[str, str] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    prints: list[str] = field(default_factory=list)


def tasks() -> list[Task]:
    found = []
    parts = re.split(r"^### (\d+)\. (.+)$", PAGE, flags=re.M)
    for number, title, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        task = Task(number, title)
        for kind, text in re.findall(r"^```(\w+)\n(.*?)^```", body, re.S | re.M):
            if kind == "python":
                name = text.partition("\n")[0].removeprefix("# ")
                task.files[name] = text
            elif kind == "sh":
                task.commands += text.splitlines()
            else:
                task.prints += text.splitlines()
        task.commands = task.commands or [f"python {name}" for name in task.files]
        found.append(task)
    return found


TASKS = tasks()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader has by then: the files of all tasks, as they are written."""
    made: Path = tmp_path_factory.mktemp("first_hour")
    for task in TASKS:
        for name, text in task.files.items():
            (made / name).write_text(text)
    return made


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command)
    own = {"FLASHOVER_CACHE_DIR": str(folder / "cache")}
    while re.match(r"[A-Z_]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        own[name] = value
    if words[0] == "python":
        return python(*words[1:], cwd=folder, env=os.environ | own)
    return subprocess.run(words, cwd=folder, env=os.environ | own, capture_output=True, text=True, timeout=160)


def test_there_are_thirty() -> None:
    assert [t.number for t in TASKS] == [str(i) for i in range(1, 31)]
    assert all(t.commands and t.prints for t in TASKS)


@pytest.mark.parametrize("task", [t for t in TASKS if t.number != "12"], ids=lambda t: f"{t.number} {t.title}")
def test_a_task(task: Task, folder: Path) -> None:
    if task.number == "11":  # where tests are shared out among processes, this one comes on time
        (folder / "breaks.py").write_text(TASKS[7].files["breaks.py"])
    check(task, folder)
    if task.number == "11":
        check(TASKS[11], folder)  # the same program, patched


def check(task: Task, folder: Path) -> None:
    output = ""
    for command in task.commands:
        done = run(command, folder)
        output += done.stdout + done.stderr
        assert done.returncode == 0 or task.number in MAY_FAIL, f"{command}:\n{output[-3000:]}"
    for line in task.prints:
        assert line in output, f"{task.number}. {task.title}: {line!r} is not printed:\n{output[-3000:]}"
