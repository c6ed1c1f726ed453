"""The n-th allocation or file call of a process fails: tests/environment/failing_calls.cpp, built and preloaded."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "environment" / "failing_calls.cpp"
LIBRARY = "FAILING_CALLS_LIBRARY"  # where it is, in the environment of a process that has it
NEW, MALLOC, FILES = 1, 2, 3
MOST_FRAMES = 64


def run_again_with_library() -> None:
    """Starts this program again in this process, with the library preloaded."""
    folder = tempfile.mkdtemp(prefix="failing-calls-")
    library = f"{folder}/failing_calls.so"
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-shared", "-fPIC", "-o", library, str(SOURCE)]
    try:
        subprocess.run([*command, "-ldl"], check=True)
    except (OSError, subprocess.CalledProcessError):
        shutil.rmtree(folder, ignore_errors=True)
        raise
    before = os.environ.get("LD_PRELOAD", "")
    env = dict(os.environ, LD_PRELOAD=f"{library}:{before}".rstrip(":"))
    env[LIBRARY] = library
    os.execve(sys.executable, [sys.executable, *sys.argv], env)


class Failing:
    """Arms the library of this process; forked children share the memory that holds the stack of what failed."""

    def __init__(self) -> None:
        path = os.environ[LIBRARY]
        self.library = ctypes.CDLL(path)
        self.library.failing_arm.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_int, ctypes.c_int]
        self.library.failing_disarm.restype = ctypes.c_long
        self.shared = mmap.mmap(-1, mmap.PAGESIZE)
        self.words = (ctypes.c_uint64 * (MOST_FRAMES + 1)).from_buffer(self.shared)
        self.library.failing_share(ctypes.byref(self.words))

    @staticmethod
    def remove_folder() -> None:
        """At the end of the process that built it."""
        shutil.rmtree(os.path.dirname(os.environ[LIBRARY]), ignore_errors=True)

    def arm(self, kind: int, n: int, error: int = 0, all_after: bool = False) -> None:
        """The n-th call of this kind fails from here on; 0: they are only counted."""
        self.library.failing_arm(kind, n, error, int(all_after))

    def disarm(self) -> int:
        """Nothing fails any more; how many calls there were."""
        return int(self.library.failing_disarm())

    def forget_stack(self) -> None:
        """Before a child is started."""
        self.words[0] = 0

    def stack(self) -> list[int]:
        """The return addresses at the first call that failed, innermost first."""
        return [int(self.words[i + 1]) for i in range(min(int(self.words[0]), MOST_FRAMES))]


KNOWN: dict[tuple[str, int], str] = {}  # names that addr2line gave


def names_of(addresses: list[int], needle: str = "") -> list[str]:
    """Their functions, by addr2line; of those in libraries whose path has `needle` in it."""
    maps = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5].startswith("/"):
            low, high = (int(x, 16) for x in parts[0].split("-"))
            maps.append((low, high, int(parts[2], 16), parts[5]))
    base = {}
    for low, _, offset, path in maps:
        if offset == 0:
            base.setdefault(path, low)
    places = [
        next(((path, address - base.get(path, low)) for low, high, _, path in maps if low <= address < high), ("", 0))
        for address in addresses
    ]
    for library in {path for path, _ in places if path and needle in path}:
        inside = [offset for path, offset in places if path == library and (path, offset) not in KNOWN]
        if not inside:
            continue
        command = ["addr2line", "-f", "-C", "-e", library, *(hex(offset - 1) for offset in inside)]
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()[::2]
        KNOWN.update({(library, offset): name for offset, name in zip(inside, lines, strict=False)})
    return [f"{os.path.basename(p[0])}: {KNOWN[p]}" for p in places if p in KNOWN and needle in p[0]]
