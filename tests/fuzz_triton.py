"""The random programs of fuzz_programs.py as Triton kernels, run in Triton's interpreter: no GPU is needed.

TRITON_INTERPRET=1 PYTHONPATH=python:tests python tests/fuzz_triton.py --seconds 300
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

os.environ["TRITON_INTERPRET"] = "1"

from fuzz_programs import discontinuous, generate, half_precision, run_one
from trace_tools import trace
from triton_tools import Runner

from flashover import _C


class Traced:
    """A call as trace_tools.Program has it, and what it returned."""

    def __init__(self, function: Callable[..., Any], args: list[torch.Tensor]) -> None:
        self.fn, self.args = function, args

    def inputs(self) -> list[tuple[str, str, torch.Tensor]]:
        return [(f"a{i}", "user", t) for i, t in enumerate(self.args)]


def all_inputs(traced: _C.Traced) -> list[torch.Tensor]:
    given, constants = iter(traced.inputs), iter(traced.constants)
    kinds = re.findall(r"^\s*%\d+ : .* = input (\w+)", traced.text, re.MULTILINE)
    return [next(constants if kind == "constant" else given) for kind in kinds]


def compile_by_interpreter(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    def call(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = list(args)
        traced = trace(Traced(function, given))  # type: ignore[arg-type]
        program = _C.triton_program(traced.text, processors=8)
        return tuple(Runner(program).run(all_inputs(traced)))

    return call


def run(seed: int) -> str | None:
    """'' or what is wrong; None: not for this test."""
    program = generate(seed)
    if discontinuous(program) and half_precision(program):
        return None  # every rounding counts
    try:
        return run_one(program, compile_by_interpreter)
    except _C.Declined as e:
        return None if "triton: no arithmetic" in str(e) else f"declined: {e}"
    except Exception:
        return traceback.format_exc(limit=-6)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, help="run this one seed and print the program")
    options = parser.parse_args()
    seeds = iter([options.only]) if options.only is not None else iter(range(options.seed, options.seed + 10**9))
    end, done, failed = time.time() + options.seconds, 0, 0
    for seed in seeds:
        problem = run(seed)
        done += problem is not None
        if problem:
            failed += 1
            print(f"seed {seed}: {problem}\n{generate(seed).source}", flush=True)
        if time.time() > end:
            break
    print(f"{done} programs, {failed} wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
