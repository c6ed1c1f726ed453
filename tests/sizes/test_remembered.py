"""Sizes and numbers that changed are remembered on disk: a second process compiles once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from interpreters import fresh, python

Run = Callable[..., subprocess.CompletedProcess[str]]
FILE = "changing_sizes.txt"
EVERY_FUNCTION = "f,net,breaks,loops"
PROGRAM = """
import sys, torch, flashover

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        return self.linear(x).relu()

def f(x, y, k):
    return (x * k + y).sum(0)

def breaks(x):
    x = x + 1
    torch._dynamo.graph_break()
    return x * 2

def loops(x):
    for i in range(x.shape[0]):
        x = x + i
    return x

def check(name, got, expected):
    assert torch.equal(got, expected), name

wanted, *given = sys.argv[1:]
options = dict(a.split("=") for a in given)
options = {k: v == "True" if v in ("True", "False") else v for k, v in options.items()}
torch.manual_seed(0)
net = Net()
calls = {
    "f": (f, lambda n: (torch.randn(n, 4), torch.randn(n, 4), float(n))),
    "net": (net, lambda n: (torch.randn(n, 4),)),
    "breaks": (breaks, lambda n: (torch.randn(n, 4),)),
    "loops": (loops, lambda n: (torch.randn(n, 4),)),
}
for name in wanted.split(","):
    g, make = calls[name]
    fast = flashover.compile(g, options=options)
    before = flashover.compile_stats()["graphs"]
    for n in (5, 6, 7):
        args = make(n)
        check(name, fast(*args), g(*args))
    print(name, flashover.compile_stats()["graphs"] - before)
"""


def graphs(folder: Path, *options: str, of: str = "f", run: Run = python, **variables: str) -> dict[str, int]:
    """By function of those named in `of`, the graphs that one process compiles."""
    environment = os.environ | {"FLASHOVER_CACHE_DIR": str(folder), "FLASHOVER_REMEMBER_SIZES": "1"} | variables
    done = run("-c", PROGRAM, of, *options, env=environment)
    assert done.returncode == 0, done.stderr
    return {name: int(count) for name, count in (line.split() for line in done.stdout.splitlines())} | {
        "said": done.stderr.count("changing_sizes")
    }


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a process that has met three sizes."""
    folder = tmp_path_factory.mktemp("sizes") / "cache"
    first = graphs(folder, of=EVERY_FUNCTION)
    assert {k: first[k] for k in ("f", "net", "breaks", "loops")} == {"f": 2, "net": 2, "breaks": 4, "loops": 3}
    return folder


def test_a_second_process_compiles_once(cache: Path) -> None:
    second = graphs(cache, of=EVERY_FUNCTION, run=fresh)  # other addresses and hashes than the first one had
    assert {k: second[k] for k in ("f", "net", "breaks")} == {"f": 1, "net": 1, "breaks": 2}
    assert second["loops"] == 3, "what needs the number is compiled for each, as ever"


def test_it_can_be_switched_off(cache: Path) -> None:
    assert graphs(cache, "remember_sizes=False")["f"] == 2
    assert graphs(cache, FLASHOVER_REMEMBER_SIZES="0")["f"] == 2


def test_the_file_of_another_machine(cache: Path, tmp_path: Path) -> None:
    other = tmp_path / FILE
    other.write_bytes((cache / FILE).read_bytes())
    assert graphs(tmp_path / "cache", f"sizes_file={other}")["f"] == 1


def test_a_file_that_is_none_is_said(tmp_path: Path) -> None:
    other = tmp_path / FILE
    other.write_text("import os\n")
    found = graphs(tmp_path / "cache", f"sizes_file={other}")
    assert found["f"] == 2 and found["said"] >= 1


@pytest.mark.parametrize("damage", ["cut", "bytes", "empty", "huge", "link", "dims"])
def test_a_damaged_file_is_none(cache: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    good, file = (cache / FILE).read_bytes(), folder / FILE
    if damage == "link":
        (tmp_path / "elsewhere").write_bytes(good)
        file.symlink_to(tmp_path / "elsewhere")
    else:
        file.write_bytes(
            {
                "cut": good[:-3],
                "bytes": good.replace(b"size", b"\xff\x00ze"),
                "empty": b"",
                "huge": good * 20000,
                "dims": good.replace(b" size 0 ", b" size 99999999999999999999 "),
            }[damage]
        )
    assert graphs(folder)["f"] == 2
    assert graphs(folder)["f"] == 1, "a whole one took its place"


def test_two_modules_of_one_class_with_other_parts(tmp_path: Path) -> None:
    """The forward of Sequential serves many: what changes in one says nothing of others."""
    program = """
import sys, torch, flashover
parts = [torch.nn.ReLU(), torch.nn.Tanh()][: int(sys.argv[1])]
fast = flashover.compile(torch.nn.Sequential(*parts))
before = flashover.compile_stats()["graphs"]
for n in (5, 6):
    fast(torch.randn(n, 4))
print(flashover.compile_stats()["graphs"] - before)
"""
    environment = os.environ | {"FLASHOVER_CACHE_DIR": str(tmp_path / "cache"), "FLASHOVER_REMEMBER_SIZES": "1"}

    def count(parts: int) -> int:
        done = python("-c", program, parts, env=environment)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    assert [count(1), count(1), count(2), count(2)] == [2, 1, 2, 1]
