"""A broken machine never breaks the program: the call runs eager with one warning, or as compiled, and is right."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from interpreters import python

PROGRAM = """
import json, resource, signal, sys, warnings
import torch, flashover
options = json.loads(sys.argv[1])
if "file_limit" in options:  # every write beyond this many bytes fails, as on a full disk
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = options.pop("file_limit")
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
fullgraph = options.pop("fullgraph", False)
def f(x):
    return torch.relu(x + 1).softmax(-1) * 2
x = torch.randn(8, 33)
fast = flashover.compile(f, fullgraph=fullgraph, options=options or None)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    try:
        results = [fast(x) for _ in range(3)]
        assert all(torch.allclose(r, f(x), atol=1e-6) for r in results)
        error = None
    except Exception as e:
        error = f"{type(e).__name__}: {e}"
said = [str(w.message) for w in seen if "flashover" in str(w.message)]
print(json.dumps({"error": error, "warnings": said, "kernels": flashover.compile_stats()["kernels"]}))
"""


def run(tmp_path: Path, options: dict[str, object] | None = None, **env: str | None) -> dict[str, object]:
    wanted = os.environ | {"FLASHOVER_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"} | env
    environment = {name: value for name, value in wanted.items() if value is not None}
    done = python("-c", PROGRAM, json.dumps(options or {}), env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def script(path: Path, text: str) -> str:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_sound(tmp_path: Path) -> None:
    got = run(tmp_path)
    assert got["error"] is None and got["warnings"] == [] and got["kernels"] > 0


def test_missing_compiler(tmp_path: Path) -> None:
    got = run(tmp_path, CXX="/no/such/compiler")
    assert got["error"] is None and got["kernels"] == 0
    assert len(got["warnings"]) == 1 and "/no/such/compiler" in got["warnings"][0]


def test_no_compiler_on_path(tmp_path: Path) -> None:
    got = run(tmp_path, PATH=str(tmp_path), CXX="")
    assert got["error"] is None and len(got["warnings"]) == 1 and "no C++ compiler" in got["warnings"][0]


@pytest.mark.parametrize(
    "text",
    ["echo 'internal compiler error: sorry' >&2; exit 1\n", "exit 0\n", "kill -9 $$\n",
     'while [ $# -gt 0 ]; do [ "$1" = -o ] && echo rubbish > "$2"; shift; done\n',
     "head -c 300000 /dev/urandom; head -c 300000 /dev/urandom >&2; exit 1\n"],
    ids=["fails", "makes nothing", "dies", "makes rubbish", "says rubbish"],
)  # fmt: skip
def test_broken_compiler(tmp_path: Path, text: str) -> None:
    got = run(tmp_path, CXX=script(tmp_path / "cc", text))
    assert got["error"] is None and got["kernels"] == 0 and len(got["warnings"]) == 1, got


def test_broken_compiler_under_fullgraph_raises(tmp_path: Path) -> None:
    got = run(tmp_path, {"fullgraph": True}, CXX=script(tmp_path / "cc", "echo 'no luck today' >&2; exit 1\n"))
    assert str(got["error"]).startswith("BackendCompilerFailed") and "no luck today" in str(got["error"])


def test_a_failure_is_not_cached(tmp_path: Path) -> None:
    run(tmp_path, CXX="/no/such/compiler")
    got = run(tmp_path)
    assert got["warnings"] == [] and got["kernels"] > 0


def test_compiler_option(tmp_path: Path) -> None:
    marker = tmp_path / "used"
    mine = script(tmp_path / "my-cc", f'touch {marker}\nexec g++ "$@"\n')
    got = run(tmp_path, {"compiler": mine}, CXX="/no/such/compiler")
    assert got["warnings"] == [] and got["kernels"] > 0 and marker.exists()
    got = run(tmp_path, {"compiler": "/nowhere/cc"})
    assert len(got["warnings"]) == 1 and "option compiler" in got["warnings"][0]


@pytest.mark.parametrize("limit", [0, 4096])
def test_full_disk(tmp_path: Path, limit: int) -> None:
    got = run(tmp_path, {"file_limit": limit})
    assert got["error"] is None and len(got["warnings"]) <= 1


def test_unwritable_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    got = run(tmp_path, FLASHOVER_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert got["error"] is None and got["kernels"] > 0
    assert len(got["warnings"]) == 1 and "is not used" in got["warnings"][0]


def test_hostile_cache(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    got = run(tmp_path)
    assert got["error"] is None and got["kernels"] > 0 and list(cache.iterdir()) == []
    assert len(got["warnings"]) == 1 and "is not used" in got["warnings"][0]


def test_read_only_home(tmp_path: Path) -> None:
    got = run(tmp_path, FLASHOVER_CACHE_DIR=None, XDG_CACHE_HOME=None, HOME="/proc")
    assert got["error"] is None and got["kernels"] > 0 and len(got["warnings"]) == 1


def test_no_temporary_folder(tmp_path: Path) -> None:
    got = run(tmp_path, TMPDIR=str(tmp_path / "nothing"))
    assert got["error"] is None and got["warnings"] == [] and got["kernels"] > 0
