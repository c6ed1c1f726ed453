"""Flashover: a compiler for PyTorch programs.

    fast = flashover.compile(model)

The core is C++ (flashover._C); this package is its face.
"""

from __future__ import annotations

import atexit as _atexit
import os as _os
import sys as _sys
from typing import Any as _Any

import torch as _torch  # noqa: F401  the libraries that the core links

from flashover import _versions  # noqa: F401  first: it says what is wrong where the core does not load

# isort: split

from flashover import _C, _operator_backward, _subclasses, _substitutes, _user_kernels, exc  # noqa: F401 (an operator)
from flashover._compile import compile, reset
from flashover._explain import explain
from flashover._explanation import Explanation
from flashover._install import install, replacing_torch_compile, uninstall
from flashover._live import Live, Stats, Version, live
from flashover._logs import set_logs
from flashover._lower import Cost, Lowered, lower
from flashover._numpy import wrap_numpy
from flashover._stance import (
    allow_in_graph,
    assume_constant_result,
    disable,
    disallow_in_graph,
    graph_break,
    is_compiling,
    run,
    set_stance,
    skip,
)
from flashover._types import Compiled
from flashover.backends import list_backends, register_backend
from flashover.options import list_modes, list_options

__all__ = [
    "AdditionalInputs",
    "Compiled",
    "Cost",
    "Dim",
    "Explanation",
    "Live",
    "Lowered",
    "ShapesCollection",
    "Stats",
    "Version",
    "allow_in_graph",
    "assume_constant_result",
    "cancel_compiles",
    "compile",
    "compile_stats",
    "disable",
    "disallow_in_graph",
    "exc",
    "explain",
    "export",
    "graph_break",
    "install",
    "is_compiling",
    "list_backends",
    "list_modes",
    "list_options",
    "live",
    "load",
    "load_cache",
    "lower",
    "package",
    "package_info",
    "register_backend",
    "replacing_torch_compile",
    "reset",
    "run",
    "save_cache",
    "set_logs",
    "set_stance",
    "sign_package",
    "skip",
    "uninstall",
    "wait_until_compiled",
    "wrap_numpy",
]
__version__ = _C.__version__
_LATER = {
    "AdditionalInputs": "torch.export",
    "Dim": "torch.export",
    "ShapesCollection": "torch.export",
    "export": "flashover._export",
    "load": "flashover._package",
    "load_cache": "flashover._package",
    "package": "flashover._package",
    "package_info": "flashover._package",
    "save_cache": "flashover._package",
    "sign_package": "flashover._signature",
}


def __getattr__(name: str) -> _Any:
    """What torch.export is needed for is imported when it is asked for."""
    if name in _LATER:
        from importlib import import_module

        globals()[name] = found = getattr(import_module(_LATER[name]), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def compile_stats() -> dict[str, int]:
    """Totals since the process started: frames, graphs, kernels, graph_breaks, extern_calls, recompiles, cache_hits;
    eager_calls and eager_frames: calls of compiled objects, and parts of them, that ran as the program is written."""
    return _C.counters()


def wait_until_compiled(timeout: float | None = None) -> bool:
    """Waits for what options={"compile": "background"} compiles; False: the timeout (in seconds) came first."""
    return _C.wait_for_background(-1.0 if timeout is None else timeout)


def cancel_compiles() -> None:
    """Stops what is compiled in the background, and drops what waits for it: such calls stay eager until reset()."""
    _C.cancel_background(False)


def _triton_identity() -> str:
    """What compiled GPU kernels depend on, for cache keys: Triton itself is imported by compile workers only."""
    from importlib.util import find_spec

    found = find_spec("triton")
    here = _os.path.dirname(__file__)
    files = [_os.path.join(here, "_triton_worker.py"), _os.path.join(here, "_triton_lib.py")]
    if found and found.origin:
        files.append(found.origin)
    stats = [_os.stat(f) for f in files]
    return " ".join(f"{s.st_size}.{s.st_mtime_ns}" for s in stats)


_C.set_triton_command(
    _sys.executable or "", _os.path.join(_os.path.dirname(__file__), "_triton_worker.py"), _triton_identity()
)
_substitutes.register()
_user_kernels.register()
_subclasses.register()
if _os.environ.get("FLASHOVER_LOGS"):
    set_logs(_os.environ["FLASHOVER_LOGS"])
_C.set_dump(_os.environ.get("FLASHOVER_DUMP", ""))
if _os.environ.get("FLASHOVER_REPORT"):
    from flashover._report import start_from_environment as _start_report

    _start_report()
if _os.environ.get("FLASHOVER_DUMP"):
    from flashover._dump import start_from_environment as _start_dump

    _start_dump()
_atexit.register(_C.cancel_background, True)
