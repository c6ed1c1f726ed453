"""FLASHOVER_DUMP: the index of a folder, and the programs in it that run one graph each."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from interpreters import python

PROGRAM = """
import torch, flashover

def scaled(x, w, i):
    y = torch.nn.functional.layer_norm(x @ w, (16,)).relu()
    flashover.graph_break()
    return y.softmax(-1)[i] * torch.tensor([0.5, 2.0])[:, None]

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(x))

fast = flashover.compile(scaled)
fast(torch.randn(4, 8), torch.randn(8, 16), torch.tensor([3, 1]))
model = flashover.compile(Net())
model(torch.randn(3, 4)).sum().backward()
"""


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return python("-c", code, env=os.environ | env)


def test_each_graph_has_a_program_that_runs(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    done = run(PROGRAM, FLASHOVER_DUMP=str(folder))
    assert done.returncode == 0 and "FLASHOVER_DUMP" not in done.stderr, done.stderr
    programs = sorted(folder.glob("*.repro.py"))
    assert [p.name.split(".")[0][:10] for p in programs] == ["000_scaled", "001_scaled", "002_Net"]
    for program in programs:
        text = program.read_text()
        assert not {"pickle", "eval(", "exec("} & set(text.split()) and "torch.ops." in text
        again = python(program)
        assert again.returncode == 0 and again.stdout == "compiled code and eager agree\n", again.stderr
    numbers = {p.name[:3] for p in folder.glob("*_plan*.txt")}
    assert numbers == {p.name[:3] for p in programs} == {p.name[:3] for p in folder.glob("*.kernel_*")}


def test_the_index_leads_to_everything(tmp_path: Path) -> None:
    assert run(PROGRAM, FLASHOVER_DUMP=str(tmp_path)).returncode == 0
    index = (tmp_path / "index.html").read_text()
    for name in ("000_scaled.html", "001_Net.html"):
        assert f'href="{name}"' in index and (tmp_path / name).exists()
    for file in tmp_path.iterdir():
        if file.name.split("_")[0].isdigit() and file.suffix != ".html":
            assert f'href="{file.name}"' in index, file
    assert "<span class=k>" in index and "graph_break()" in index


def test_programs_do_not_follow_links(tmp_path: Path) -> None:
    folder, other = tmp_path / "dump", tmp_path / "other"
    folder.mkdir()
    (folder / "000_f.repro.py").symlink_to(other)
    code = "import torch, flashover\ndef f(x): return x.sin() + 1\nprint(flashover.compile(f)(torch.zeros(2)))"
    done = run(code, FLASHOVER_DUMP=str(folder))
    assert done.returncode == 0 and done.stdout == "tensor([1., 1.])\n" and not other.exists()
    assert "FLASHOVER_DUMP: no program for graph 0 of f" in done.stderr


def test_sizes_that_are_symbols(tmp_path: Path) -> None:
    """The program has the sizes of the call that was captured, and compiles with symbols; `input` is a name."""
    folder = tmp_path / "dump"
    code = """
import torch, flashover
f = flashover.compile(lambda input, w: torch.relu(input @ w).reshape(-1, 2).sum(-1), dynamic=True)
for n in (3, 5):
    f(torch.randn(n, 8), torch.randn(8, 4))
"""
    assert run(code, FLASHOVER_DUMP=str(folder)).returncode == 0
    (program,) = folder.glob("*.repro.py")
    text = program.read_text()
    assert "dynamic=True" in text and "(3, 8)" in text
    done = run(text)
    assert done.returncode == 0 and "compiled code and eager agree" in done.stdout, done.stderr
