"""The disk cache under attack: other users' directories, damaged entries, full disks, killed writers. Never an
error, at most one
warning, never a wrong entry."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from interpreters import python

from flashover import _C

STRANGER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="chown needs root")


def works(path: Path | str) -> bool:
    c = _C._Cache(str(path))
    c.put("plan", 1, b"bytes")
    return c.get("plan", 1) == b"bytes" and c.take_warning() == ""


def refused(path: Path | str) -> str:
    """No cache, one warning, and no exception."""
    c = _C._Cache(str(path))
    c.put("plan", 1, b"bytes")
    assert c.get("plan", 1) is None
    warning = c.take_warning()
    c.put("plan", 2, b"bytes")
    assert c.get("plan", 2) is None
    assert c.take_warning() == "", "one warning"
    assert warning.startswith("flashover: the cache ")
    return warning


def foreign_directory(d: Path) -> Path:
    (d / "c").mkdir()
    os.chown(d / "c", STRANGER, STRANGER)
    return d / "c"


def foreign_parent(d: Path) -> Path:
    return foreign_directory(d) / "flashover"


def link_of_a_stranger(d: Path) -> Path:
    (d / "real").mkdir(mode=0o700)
    (d / "c").symlink_to(d / "real")
    os.lchown(d / "c", STRANGER, STRANGER)
    return d / "c"


def link_into_foreign(d: Path) -> Path:
    (d / "link").symlink_to(foreign_directory(d))
    return d / "link"


def world_writable(d: Path) -> Path:
    (d / "c").mkdir()
    (d / "c").chmod(0o777)
    return d / "c"


def sticky_world_writable(d: Path) -> Path:
    (d / "c").mkdir()
    (d / "c").chmod(0o1777)
    return d / "c"


def group_writable(d: Path) -> Path:
    (d / "c").mkdir()
    (d / "c").chmod(0o770)
    return d / "c"


def below_world_writable(d: Path) -> Path:
    return world_writable(d) / "x" / "y"


def a_file(d: Path) -> Path:
    (d / "c").write_text("x")
    return d / "c"


def below_a_file(d: Path) -> Path:
    return a_file(d) / "x"


def a_pipe(d: Path) -> Path:
    os.mkfifo(d / "c")
    return d / "c"


def a_device(d: Path) -> Path:
    return Path("/dev/null")


def dangling_link(d: Path) -> Path:
    (d / "c").symlink_to(d / "nothing")
    return d / "c"


def link_loop(d: Path) -> Path:
    (d / "a").symlink_to(d / "b")
    (d / "b").symlink_to(d / "a")
    return d / "a"


def name_too_long(d: Path) -> Path:
    return d / ("n" * 300)


def not_writable_filesystem(d: Path) -> Path:
    return Path("/proc/flashover")


def relative(d: Path) -> Path:
    return Path("some/where")


def dots_behind_nothing(d: Path) -> Path:
    return Path(f"{d}/nothing/../c")


HOSTILE: list[Callable[[Path], Path]] = [
    foreign_directory, foreign_parent, link_of_a_stranger, link_into_foreign, world_writable, sticky_world_writable,
    group_writable,
    below_world_writable, a_file, below_a_file, a_pipe, a_device, dangling_link, link_loop, name_too_long,
    not_writable_filesystem,
    relative, dots_behind_nothing,
]  # fmt: skip
NEED_ROOT = {foreign_directory, foreign_parent, link_of_a_stranger, link_into_foreign}


@pytest.mark.parametrize("make", HOSTILE, ids=lambda f: f.__name__)
def test_hostile_directory(make: Callable[[Path], Path], tmp_path: Path) -> None:
    if make in NEED_ROOT and os.geteuid() != 0:
        pytest.skip("chown needs root")
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    path = make(tmp_path)
    after = sorted(str(p) for p in tmp_path.rglob("*"))
    refused(path if make is dots_behind_nothing else str(path))
    assert sorted(str(p) for p in tmp_path.rglob("*")) == after, "nothing is made there"
    assert before != after or make in (a_device, name_too_long, not_writable_filesystem, relative, dots_behind_nothing)


@pytest.mark.parametrize(
    "name", ["plain", "with blank", "quote'\"", "semi;colon", "ünï©ode", "new\nline", "$(touch x)"]
)
def test_odd_names_are_fine(name: str, tmp_path: Path) -> None:
    assert works(tmp_path / name / "cache")
    assert stat.S_IMODE((tmp_path / name / "cache").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700


def entry(path: Path) -> Path:
    (found,) = [f for f in path.iterdir() if f.name.startswith("plan-")]
    return found


def test_planted_entries(tmp_path: Path) -> None:
    """What stands under an entry's name is not believed and not written through."""
    path = tmp_path / "c"
    assert works(path)
    good = entry(path).read_bytes()
    precious = tmp_path / "precious"
    for plant in ("link", "hard link", "pipe", "directory", "writable", "empty", "zeros", "huge"):
        target = entry(path)
        if target.is_dir():
            target.rmdir()
        else:
            target.unlink()
        precious.unlink(missing_ok=True)
        precious.write_bytes(good)
        if plant == "link":
            target.symlink_to(precious)
        elif plant == "hard link":
            os.link(precious, target)
        elif plant == "pipe":
            os.mkfifo(target, 0o600)
        elif plant == "directory":
            target.mkdir()
        elif plant == "writable":
            target.write_bytes(good)
            target.chmod(0o666)
        elif plant == "empty":
            target.touch(0o600)
        elif plant == "zeros":
            target.touch(0o600)
            target.write_bytes(bytes(len(good)))
        else:
            target.touch(0o600)
            os.truncate(target, 5 << 30)  # sparse: reading it would take 5 GiB
        c = _C._Cache(str(path))
        start = time.monotonic()
        assert c.get("plan", 1) is None, plant
        assert time.monotonic() - start < 2, plant
        if plant != "directory":
            c.put("plan", 1, b"other")
            assert c.get("plan", 1) == b"other", plant
            assert precious.read_bytes() == good, plant
            assert c.take_warning() == "", plant
        else:
            c.put("plan", 1, b"other")
            assert "cannot be written" in c.take_warning()


def test_swapped_and_mutated_entries(tmp_path: Path) -> None:
    path = tmp_path / "c"
    c = _C._Cache(str(path))
    values = {k: bytes(random.Random(k).randbytes(50 + 13 * k)) for k in range(20)}
    for k, v in values.items():
        c.put("plan", k, v)
    files = sorted(path.glob("plan-*"))
    rng = random.Random(5)
    for _ in range(2000):
        a, b = rng.sample(files, 2)
        whole = a.read_bytes() if a.exists() else b"\0" * 80
        mutated = bytearray(whole)
        kind = rng.randrange(4)
        if kind == 0:
            mutated[rng.randrange(len(mutated))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del mutated[rng.randrange(len(mutated)) :]
        elif kind == 2 and b.exists():
            mutated = bytearray(b.read_bytes())
        else:
            at = rng.randrange(len(mutated))
            mutated[at : at + 8] = bytes(8)
        a.touch(0o600)
        a.write_bytes(mutated)
        for k, v in values.items():
            assert c.get("plan", k) in (None, v)
        for k in rng.sample(sorted(values), 5):
            c.put("plan", k, values[k])
    assert c.take_warning() == ""


WRITER = """
import sys, random
from flashover import _C
c = _C._Cache(sys.argv[1], 1 << 20, 40)
r = random.Random(int(sys.argv[2]))
print("go", flush=True)
while True:
    k = r.randrange(60)
    c.put("plan", k, bytes([k]) * (1000 * k + 100))
    got = c.get("plan", r.randrange(60))
    assert got is None or len(set(got)) == 1
"""


def test_killed_writers(tmp_path: Path) -> None:
    path = tmp_path / "c"
    mine = _C._Cache(str(path), 1 << 20, 40)
    for round_ in range(3):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(4 * round_ + i)], stdout=subprocess.PIPE,
                             env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
            for i in range(2)
        ]  # fmt: skip
        for w in writers:
            assert w.stdout is not None
            assert w.stdout.readline() == b"go\n"
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            for k in range(60):
                got = mine.get("plan", k)
                assert got is None or got == bytes([k]) * (1000 * k + 100)
        for w in writers:
            assert w.poll() is None, "a writer failed by itself"
            w.send_signal(signal.SIGKILL)
            w.wait()
        start = time.monotonic()
        mine.put("plan", 7, bytes([7]) * 7100)
        mine.evict()
        assert time.monotonic() - start < 2, "nobody waits for the dead"
    assert mine.take_warning() == ""


def test_directory_removed_under_us(tmp_path: Path) -> None:
    import shutil

    path = tmp_path / "c"
    c = _C._Cache(str(path))
    for i in range(5):
        c.put("plan", i, b"x")
        assert c.get("plan", i) == b"x"
        shutil.rmtree(path)
        assert c.get("plan", i) is None
    assert c.take_warning() == ""


def test_environment_chooses_the_directory(tmp_path: Path) -> None:
    def directory(**env: str) -> str:
        full = {k: v for k, v in os.environ.items() if k not in ("FLASHOVER_CACHE_DIR", "XDG_CACHE_HOME", "HOME")}
        full["PYTHONPATH"] = os.pathsep.join(sys.path)
        code = "from flashover import _C; print(_C._process_cache().directory)"
        done = python("-c", code, env={**full, **env})
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert directory(FLASHOVER_CACHE_DIR="/x/y", HOME="/h") == "/x/y"
    assert directory(FLASHOVER_CACHE_DIR="", HOME="/h") == ""
    assert directory(XDG_CACHE_HOME="/x", HOME="/h") == "/x/flashover"
    assert directory(HOME="/h") == "/h/.cache/flashover"
