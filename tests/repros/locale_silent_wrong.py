"""Under a locale with a decimal comma and grouped digits numbers reach generated code, plans and cache keys as they are
in the C locale: results equal eager's, and a second process under the C locale finds the same plans in the cache.
"""
# process: fresh

import locale
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import flashover

sys.path.insert(0, str(Path(__file__).parent.parent / "environment"))
import comma_locale


def full():
    return torch.full((2, 3), 1.25)


def new(x):
    return x.new_full((2,), -0.75), torch.zeros(3) + 2.5


def pad(x):
    return torch.nn.functional.pad(x, (1, 1), value=0.5)


def large(x):
    return x * 1234567.5 + 1e-7


def check() -> None:
    x = torch.ones(4)
    for function, args in ((full, ()), (new, (x,)), (pad, (x,)), (large, (x,))):
        got, want = flashover.compile(function)(*args), function(*args)
        for g, w in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want), strict=True):
            assert torch.equal(g, w), f"{function.__name__}: {g} instead of {w}"


def main() -> None:
    if len(sys.argv) > 1:  # under the C locale, with the cache of the first
        check()
        assert flashover.compile_stats()["cache_hits"] == 4, flashover.compile_stats()
        return
    with tempfile.TemporaryDirectory() as folder:
        if not (name := comma_locale.make(Path(folder))):
            print("left out: no locale with a decimal comma can be made here")
            return
        os.environ["LOCPATH"] = folder
        locale.setlocale(locale.LC_ALL, name)
        assert locale.localeconv()["decimal_point"] == ","
        check()
    environment = {k: v for k, v in os.environ.items() if k != "LOCPATH" and not k.startswith("LC_")}
    subprocess.run([sys.executable, __file__, "C"], env=environment, check=True)


main()
