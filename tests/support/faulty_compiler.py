"""A C++ compiler that makes another function of asinh in generated kernels, for tests of what finds or survives
faults."""

from __future__ import annotations

import sys
from pathlib import Path

ASINH = "{ return lanes_asinhf(x); }"  # of generated kernels (kernel/cpp)
WRONG = "{ return 1.01f * lanes_asinhf(x); }"
CRASHES = "{ return *(volatile float*)8 + lanes_asinhf(x); }"
ENDLESS = '{ for (;;) asm volatile(""); }'
NOT_COMPILED = "{ return no_such_function(x); }"
SLOW = "{ for (volatile int i = 0; i < 10000; i = i + 1); return lanes_asinhf(x); }"

_PROGRAM = f"""
import os, pathlib, sys
for argument in sys.argv[1:]:
    if argument.endswith(".cpp"):
        file = pathlib.Path(argument)
        file.write_text(file.read_text().replace({ASINH!r}, os.environ["FLASHOVER_TEST_FAULT"]))
os.execvp("g++", ["g++", *sys.argv[1:]])
"""


def environment(folder: Path, fault: str) -> dict[str, str]:
    """Variables for programs that are to have the fault; `folder` gets the compiler and a cache of its own."""
    wrapper = folder / "cxx.py"
    wrapper.write_text(_PROGRAM)
    cache = str(folder / "cache")
    return {"CXX": f"{sys.executable} {wrapper}", "FLASHOVER_TEST_FAULT": fault, "FLASHOVER_CACHE_DIR": cache}
