"""The tests with threads under ThreadSanitizer (./x tsan [pytest arguments]; without any, what tests/tsan.txt names,
after the unit tests of sym and compile: those of kernel start programs by vfork, which TSan makes a fork).

The extension and the kernels that it compiles are instrumented; CPython and torch are not. What these do to memory is
not looked at (ignore_noninstrumented_modules), what they order is: TSan sees their mutexes, the GIL among them, and
tools/tsan/openmp.cpp tells it of parallel regions. Every report is printed once; one is a failure.
tools/tsan/suppressions.txt says with reasons which ones are none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from package_links import make_package, pythonpath

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "tsan"
PACKAGE = BUILD / "python" / "flashover"
HERE = ROOT / "tools" / "tsan"
WRAPPER = """#!/bin/sh
unset LD_PRELOAD TSAN_OPTIONS
exec {compiler} -fsanitize=thread -g1 "$@"
"""


def library() -> str:
    found = subprocess.run(["g++", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True)
    if not os.path.isabs(found.stdout.strip()):
        sys.exit("tsan: g++ has no libtsan here")
    return found.stdout.strip()


def environment(reports: Path) -> dict[str, str]:
    openmp, wrapper = BUILD / "openmp.so", BUILD / "tsan-g++"
    flags = ["-std=c++20", "-O1", "-g1", "-fPIC", "-shared", "-fsanitize=thread"]
    subprocess.run(["g++", *flags, str(HERE / "openmp.cpp"), "-o", str(openmp), "-ldl"], check=True)
    wrapper.write_text(WRAPPER.format(compiler=shutil.which("g++")))
    wrapper.chmod(0o700)
    options = {
        "suppressions": HERE / "suppressions.txt",
        "log_path": reports / "report",
        "exitcode": 0,
        "ignore_noninstrumented_modules": 1,
        "history_size": 5,
    }
    return os.environ | {
        "PYTHONPATH": str(make_package(PACKAGE)),
        "LD_PRELOAD": f"{library()} {openmp}",
        "TSAN_OPTIONS": " ".join(f"{k}={v}" for k, v in options.items()),
        "CXX": str(wrapper),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "4"),
        "FLASHOVER_CACHE_DIR": "",
    }


def instrumented_units(environment: dict[str, str]) -> int:
    """How many of the C++ test programs failed. They have libtsan in them."""
    failed = 0
    for program in (BUILD / "sym_test", BUILD / "compile_test"):
        print(f"tsan: {program.name}", flush=True)
        ran = subprocess.run(
            ["setarch", "-R", str(program), "--gtest_brief=1"], env=environment, cwd=BUILD, check=False
        )
        failed += ran.returncode != 0
    return failed


def found_in(reports: Path) -> dict[str, str]:
    """The reports by their last line, which says where: those of one place are one."""
    found: dict[str, str] = {}
    for file in sorted(reports.iterdir()):
        for text in file.read_text(errors="replace").split("==================\n"):
            summary = [line for line in text.splitlines() if line.startswith("SUMMARY: ")]
            if summary:
                found.setdefault(summary[0], text)
    return found


def main() -> int:
    reports = BUILD / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    listed = [line.partition("#")[0].strip() for line in (ROOT / "tests" / "tsan.txt").read_text().splitlines()]
    targets = sys.argv[1:] or [line for line in listed if line]
    python = environment(reports)
    failed = 0 if sys.argv[1:] else instrumented_units({k: v for k, v in python.items() if k != "LD_PRELOAD"})
    # No random addresses: TSan knows where a program's memory lies. pyproject.toml's pythonpath would put the daily
    # package first, before a plugin is imported (pytest 9) or after it (8).
    options = ["-o", f"pythonpath={' '.join(pythonpath(PACKAGE))}", "-p", "flashover", "-q"]
    pytest = ["setarch", "-R", sys.executable, "-m", "pytest", *options, *targets]
    failed += subprocess.run(pytest, env=python, cwd=ROOT, check=False).returncode != 0
    found = found_in(reports)
    for text in found.values():
        print(text)
    print(f"tsan: {len(found)} reports" + (f", {failed} test programs failed" if failed else ""))
    return 1 if found or failed else 0


if __name__ == "__main__":
    sys.exit(main())
