"""Kernels under AddressSanitizer and UndefinedBehaviorSanitizer, for child processes of tests and fuzzers.

Every kernel is compiled by a wrapper that adds the sanitizers to the compiler's flags; the child preloads their
libraries, so that torch's tensors have red zones, and FLASHOVER_DEBUG_MEMORY gives each temporary a block of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -g1 -fno-omit-frame-pointer"
WRAPPER = """#!/bin/sh
unset LD_PRELOAD ASAN_OPTIONS UBSAN_OPTIONS
exec {compiler} {flags} "$@"
"""


def missing() -> str:
    """'' or why kernels cannot be sanitized on this machine."""
    if shutil.which("g++") is None:
        return "no g++"
    return "" if all(libraries()) else "g++ has no libasan or libubsan"


def libraries() -> list[str]:
    found = []
    for name in ("libasan.so", "libubsan.so"):
        out = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        path = out.stdout.strip()
        found.append(path if os.path.isabs(path) else "")
    return found


def environment(folder: Path, isa: str = "") -> dict[str, str]:
    """What a child needs; `folder` outlives it."""
    wrapper = folder / "sanitizing-g++"
    wrapper.write_text(WRAPPER.format(compiler=shutil.which("g++"), flags=FLAGS))
    wrapper.chmod(0o700)
    child = dict(os.environ)
    child |= {
        "CXX": str(wrapper),
        "LD_PRELOAD": " ".join(libraries()),
        # Python and torch leak at exit and use memory of others' making; their own errors are not looked for.
        "ASAN_OPTIONS": "detect_leaks=0:alloc_dealloc_mismatch=0:detect_odr_violation=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "FLASHOVER_CACHE_DIR": "",
        "FLASHOVER_DEBUG_MEMORY": "1",
        "FLASHOVER_SANITIZED": "1",
        "PYTHONMALLOC": "malloc",
    }
    if isa:
        child["FLASHOVER_ISA"] = isa
    return child


def run(arguments: list[str], folder: Path, isa: str = "", seconds: float = 600) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, in an environment whose kernels are sanitized."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment(folder, isa),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
