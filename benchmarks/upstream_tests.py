"""Tests of torch or of another library, each under `compile`: which of them differ from eager.

    python benchmarks/upstream_tests.py FOLDER test_autograd.py [-k word ...]

FOLDER is `test` of torch's sources (Debian has them: deb.debian.org/debian/pool/main/p/pytorch), or a library's (its
source distribution). The file runs twice with pytest, as it is and with every test (a method of `unittest`, a function)
under `flashover.compile` (`--by torch`: torch.compile with the backend aot_eager), and the tests that fail in the second
run alone are printed. `--twice`: tests of Python code alone (Lib/test of Python itself, with `--pyargs test.test_dict`),
methods of `unittest`; each is called beside an operator of torch, so that there is a graph, and once more when that is
compiled. This file is the plugin of pytest, too.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MODE = "FLASHOVER_UPSTREAM_MODE"
TWICE = "FLASHOVER_UPSTREAM_TWICE"


def stand_in(*args: Any, **options: Any) -> Any:
    """What the tests import from another torch's helpers: decorators, which here change nothing."""
    return args[0] if len(args) == 1 and callable(args[0]) and not options else lambda f: f


def fill_in_helpers() -> None:
    """Names that older tests import and this torch does not have."""
    from torch.testing._internal import common_cuda, common_mkldnn, common_nn, common_utils

    def missing(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return [] if name.endswith("module_tests") else stand_in

    for module in (common_cuda, common_mkldnn, common_nn, common_utils):
        if not hasattr(module, "__getattr__"):
            module.__getattr__ = missing  # type: ignore[attr-defined]


def compiled(test: Callable[..., Any], by: str) -> Callable[..., Any]:
    """As of now: what was compiled before is forgotten."""
    import torch

    import flashover

    if by == "eager":
        return test
    if by == "torch":
        torch._dynamo.reset()
        return torch.compile(test, backend="aot_eager")
    flashover.reset()
    return flashover.compile(test)


def call_each_method_twice(by: str) -> None:
    import torch

    x = torch.ones(2)

    def run(test: unittest.TestCase, method: Callable[[], Any]) -> None:
        def beside() -> torch.Tensor:
            y = x + 1
            method()
            return y

        call = compiled(beside, by)
        call()
        test.tearDown()
        test.setUp()
        call()

    unittest.TestCase._callTestMethod = run  # type: ignore[attr-defined]


def compile_each_method(by: str) -> None:
    def run(_: unittest.TestCase, method: Callable[[], Any]) -> None:
        compiled(method, by)()

    unittest.TestCase._callTestMethod = run  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> None:
    """pytest's hook: the function is exchanged, and called by whoever calls functions."""
    if not issubclass(pyfuncitem.cls or object, unittest.TestCase):
        pyfuncitem.obj = compiled(pyfuncitem.obj, os.environ.get(MODE, "eager"))


def failed(folder: Path, arguments: list[str], mode: str) -> set[str]:
    """Runs the tests in a process of its own; the names of those that fail."""
    here = Path(__file__).resolve().parent
    paths = [str(here), str(here.parent / "python"), str(folder), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        MODE: mode,
        "PYTHONPATH": ":".join(p for p in paths if p),
        "FLASHOVER_REMEMBER_SIZES": "0",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--noconftest",  # upstream's is written for an older pytest
        "-p",
        Path(__file__).stem,
        "-n",
        "2",
        "-rfE",
        "--tb=no",
        "-W",
        "ignore",
    ]
    command += ["--timeout", "120", "-o", "addopts=", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    print(f"{mode}: {done.stdout.rstrip().splitlines()[-1]}", flush=True)
    return set(re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--by", choices=["flashover", "torch"], default="flashover")
    parser.add_argument("--twice", action="store_true")
    options, arguments = parser.parse_known_args()
    if options.twice:
        os.environ[TWICE] = "1"
    folder = options.folder.resolve()
    eager = failed(folder, arguments, "eager")
    for name in sorted(failed(folder, arguments, options.by) - eager):
        print(name)


if __name__ == "__main__":
    main()
elif TWICE in os.environ:
    call_each_method_twice(os.environ[MODE])
elif MODE in os.environ:
    fill_in_helpers()
    if os.environ[MODE] != "eager":
        compile_each_method(os.environ[MODE])
