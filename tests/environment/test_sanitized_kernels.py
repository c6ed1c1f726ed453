"""The random programs' kernels under AddressSanitizer and UndefinedBehaviorSanitizer, at each instruction set. The long
mode is `tests/fuzz/fuzz_programs.py --sanitize --seconds 600 --isa avx2`."""

from __future__ import annotations

from pathlib import Path

import pytest
import sanitized
from cpu_features import LEVEL

FUZZER = str(Path(__file__).parents[1] / "fuzz" / "fuzz_programs.py")
pytestmark = pytest.mark.skipif(bool(sanitized.missing()), reason=sanitized.missing())

# A kernel as the toolchain makes them, which reads one element too many, or adds to an address past its end.
FAULTY = """
import ctypes, os, subprocess, sys, torch
folder = sys.argv[1]
source, made = folder + "/k.cpp", folder + "/k.so"
open(source, "w").write('extern "C" float k(const float* p, long n) { float s = 0;'
                        ' for (long i = 0; i <= n; ++i) s += p[i]; return s; }'
                        'extern "C" int shift(int by) { return 1 << by; }')
subprocess.run([os.environ["CXX"], "-O1", "-fPIC", "-shared", "-nostdlib", "-o", made, source], check=True)
library = ctypes.CDLL(made)
if sys.argv[2] == "address":
    x = torch.zeros(24)
    library.k(ctypes.c_void_p(x.data_ptr()), ctypes.c_long(24))
else:
    library.shift(40)
"""


@pytest.mark.parametrize(("what", "said"), [("address", "heap-buffer-overflow"), ("undefined", "shift exponent 40")])
def test_the_sanitizers_see_a_fault(what: str, said: str, tmp_path: Path) -> None:
    out = sanitized.run(["-c", FAULTY, str(tmp_path), what], tmp_path)
    assert out.returncode != 0 and said in out.stderr, out.stderr[-3000:]


@pytest.mark.parametrize("isa", ["", *(level for level in ("avx2", "scalar") if level != LEVEL)])
def test_random_programs(isa: str, tmp_path: Path) -> None:
    out = sanitized.run([FUZZER, "--start", "0", "--count", "6", "--seconds", "200"], tmp_path, isa)
    assert out.returncode == 0, (out.stdout + out.stderr)[-5000:]
    assert "6 programs, 0 wrong" in out.stdout, out.stdout
