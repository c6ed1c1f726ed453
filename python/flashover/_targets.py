"""Plans for the kinds of machines that a package is for: this one, those with fewer instruction sets, GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from flashover import _C, exc
from flashover._library_levels import LIBRARY_LEVELS

NATIVE = "native"  # this machine with all that it has
# By architecture: processors of the device that kernels are cut for. They run on those with more or fewer as well.
GPUS = {
    "sm_120": (120, 188),
    "sm_100": (100, 148),
    "sm_90": (90, 132),
    "sm_89": (89, 142),
    "sm_86": (86, 84),
    "sm_80": (80, 108),
}
_BEST_FIRST = (NATIVE, *GPUS, *reversed(LIBRARY_LEVELS))


def device_of(target: str, native: str) -> str:
    """The kind of device that a target is for. native: that the program is on."""
    return native if target == NATIVE else "cuda" if target in GPUS else "cpu"


def ordered(targets: Sequence[str]) -> list[str]:
    """The targets, the best first, each once; an error for those that cannot be built here."""
    if isinstance(targets, str) or not targets:
        raise TypeError('targets is a list of levels: ["native", "avx2", "sm_90"]')
    for target in targets:
        if target not in _BEST_FIRST:
            raise exc.UserError(f"there is no target {target}; there are {', '.join(_BEST_FIRST)}")
        if target in LIBRARY_LEVELS and (missing := _C.missing_feature(target)):
            raise exc.UserError(
                f"the target {target} cannot be built here: this machine (or FLASHOVER_ISA) lacks {missing}. "
                "Package where it is there: one package may be for several levels"
            )
    return [target for target in _BEST_FIRST if target in targets]


def plans_for(target: str, programs: Sequence[str], options: Mapping[str, str]) -> list[bytes]:
    """By program (its text): the plan's bytes."""
    if target == NATIVE or target in GPUS:
        return [_C.plan_of_program(text, options, GPUS.get(target)) for text in programs]
    with tempfile.TemporaryDirectory(prefix="flashover") as folder:
        request = {"programs": list(programs), "options": dict(options), "threads": torch.get_num_threads()}
        (Path(folder) / "request.json").write_text(json.dumps(request))
        root = str(Path(__file__).parents[1])
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        limited = {**os.environ, **LIBRARY_LEVELS[target], "FLASHOVER_ISA": target, "PYTHONPATH": paths}
        command = [sys.executable, "-m", "flashover._plan_worker", folder]
        done = subprocess.run(command, env=limited, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines()
            raise exc.UserError(
                f"the programs could not be compiled for the target {target}: {lines[-1] if lines else done.returncode}"
                " (a process of its own compiles them, which knows no operators that this one registered)"
            )
        return [(Path(folder) / f"{number}.plan").read_bytes() for number in range(len(programs))]
