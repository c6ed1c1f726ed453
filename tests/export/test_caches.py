"""The disk cache as one file, and functions compiled ahead of time."""

import subprocess
import sys
import textwrap

import pytest
import torch

import flashover
from flashover import exc

PROGRAM = """
    import sys, torch, flashover
    def f(x):
        return torch.tanh(x) * 3 + x
    if sys.argv[1] == "load":
        assert flashover.load_cache(sys.argv[2]) > 0
    assert torch.allclose(flashover.compile(f)(torch.ones(1000)), f(torch.ones(1000)))
    if sys.argv[1] == "save":
        assert flashover.save_cache(sys.argv[2]) > 0
    print(flashover.compile_stats()["cache_hits"])
"""


def run(what, file, folder, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), what, file],
        env={"FLASHOVER_CACHE_DIR": str(folder), "PYTHONPATH": ":".join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_cache_in_another_folder_hits_without_a_compiler(tmp_path):
    file = str(tmp_path / "cache.flash")
    first = run("save", file, tmp_path / "one", PATH="/usr/bin:/bin")
    assert first.stdout == "0\n", first.stderr
    second = run("load", file, tmp_path / "two", PATH="/nonexistent")
    assert second.stdout == "1\n", second.stderr


def test_a_file_that_is_no_cache(tmp_path):
    flashover.package(flashover.export(lambda x: x * 2, (torch.ones(2),)), tmp_path / "p.flash")
    with pytest.raises(exc.UserError, match="holds no cache"):
        flashover.load_cache(tmp_path / "p.flash")


def test_the_least_recently_used_entries_are_left_out(tmp_path):
    flashover.compile(lambda x: torch.sin(x) * 5)(torch.ones(100))
    assert flashover.save_cache(tmp_path / "none.flash", max_mb=0) == 0
    assert flashover.save_cache(tmp_path / "all.flash") > 0


def test_a_function_compiled_ahead_of_time(tmp_path):
    @flashover.compile
    def f(x, scale=1.0):
        return {"y": torch.tanh(x) * scale}

    x = torch.randn(50)
    compiled = f.aot_compile(((x,), {"scale": 2.0}))
    with torch.no_grad():
        want = f(x, scale=2.0)["y"]
    assert torch.equal(compiled(x, scale=2.0)["y"], want)
    compiled.save_compiled_function(tmp_path / "f.flash")
    assert torch.equal(flashover.load(tmp_path / "f.flash")(x, scale=2.0)["y"], want)
    with pytest.raises(exc.UserError, match=r"scale is 2\.0 in the program"):
        compiled(x, scale=3.0)
