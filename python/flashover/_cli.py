"""Commands that run no program: env, cache, options, runtime, sign, check."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from typing import Any

import torch

from flashover import _C, _signature, _torch_settings, exc
from flashover import options as options_table
from flashover._explain_text import size
from flashover._nearest import did_you_mean

_REMEMBERED = "changing_sizes.txt"  # in the folder of the cache: which sizes changed in earlier processes


def _compiler() -> str:
    """The C++ compiler that kernels are built by, and its version."""
    for words in filter(None, [os.environ.get("CXX", ""), "g++", "clang++", "c++"]):
        command = shlex.split(words)
        if command and shutil.which(command[0]):
            done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
            return f"{words}: {(done.stdout.splitlines() or ['no version'])[0]}"
    return "none: CPU kernels cannot be built (apt install g++)"


def _facts() -> Iterator[tuple[str, str]]:
    yield "flashover", _C.__version__
    yield "torch", torch.__version__
    yield "python", f"{platform.python_version()} ({sys.executable})"
    yield "system", platform.platform()
    yield (
        "processor",
        f"{torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
    )
    yield "compiler", _compiler()
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            yield f"cuda:{i}", f"{torch.cuda.get_device_name(i)}, CUDA {torch.version.cuda}"
    else:
        yield "cuda", "no device"
    yield "cache", _C._process_cache().directory or "none (FLASHOVER_CACHE_DIR is empty)"
    for name in sorted(os.environ):
        if name.startswith("FLASHOVER_"):
            yield name, os.environ[name]


def env(_: argparse.Namespace) -> int:
    for name, value in _facts():
        print(f"{name:10} {value}")
    return 0


def runtime(_: argparse.Namespace) -> int:
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runtime")
    if not os.path.exists(os.path.join(folder, "lib", "libflashover_runtime.so")):
        print("the runtime is not built: ./x build flashover_runner", file=sys.stderr)
        return 1
    print(folder)
    return 0


def sign(given: argparse.Namespace) -> int:
    return _signature_command(lambda: print(_signature.sign_package(given.file, given.key)))


def check(given: argparse.Namespace) -> int:
    def look() -> None:
        with open(given.file, "rb") as file:
            _signature.check_signature(file, given.file + _signature.SUFFIX, given.key)
        print("signed by that key, and not changed since")

    return _signature_command(look)


def _signature_command(act: Callable[[], None]) -> int:
    try:
        act()
    except (exc.UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def cache(given: argparse.Namespace) -> int:
    cache_of_process = _C._process_cache()
    folder = cache_of_process.directory
    if not folder:
        print("there is no cache: FLASHOVER_CACHE_DIR is empty", file=sys.stderr)
        return 1
    if given.action == "path":
        print(folder)
    elif given.action == "clear":
        print(f"{cache_of_process.clear([_REMEMBERED])} files removed from {folder}")
    elif given.action == "export":
        return _export(folder, given.file)
    else:
        _info(cache_of_process)
    if warning := cache_of_process.take_warning():
        print(warning, file=sys.stderr)
        return 1
    return 0


def _info(cache_of_process: Any) -> None:
    print(cache_of_process.directory)
    contents = cache_of_process.contents()
    for kind, (entries, taken) in contents.items():
        print(f"  {kind:12} {entries:6} entries {size(taken):>9}")
    entries, taken = (sum(c[i] for c in contents.values()) for i in (0, 1))
    print(f"  {'all':12} {entries:6} entries {size(taken):>9} of {os.environ.get('FLASHOVER_CACHE_MB', '2048')} MB")


def _export(folder: str, file: str | None) -> int:
    if not file:
        print("cache export needs the archive to write: python -m flashover cache export cache.tar.gz", file=sys.stderr)
        return 2
    names = sorted(e.name for e in os.scandir(folder) if e.is_file(follow_symlinks=False) and e.name[0] != ".")
    with tarfile.open(file, "w:gz") as archive:
        for name in names:
            archive.add(os.path.join(folder, name), arcname=name, recursive=False)
    print(
        f"{len(names)} files in {file}; unpack it in the folder that `cache path` names on a machine of the same kind"
    )
    return 0


def options(given: argparse.Namespace) -> int:
    if given.torch:
        return _torchs_options(given.name)
    table = options_table.list_options()
    if given.name is not None and given.name not in table:
        print(f"no option {given.name!r}; {did_you_mean(given.name, table)}: {', '.join(table)}", file=sys.stderr)
        return 2
    for name, (kind, default, meaning) in table.items():
        if given.name in (None, name):
            print(f"{name}: {kind} = {default!r}\n    {meaning}")
    if given.name is None:
        print("modes:")
        for mode, stands_for in options_table.MODES.items():
            print(f"  {mode}: " + (", ".join(f"{k}={v}" for k, v in stands_for.items()) or "the defaults"))
    return 0


def _torchs_options(name: str | None) -> int:
    """torch.compile's settings as they count here: all that the installed torch has, or those of a name."""
    found = False
    for module in _torch_settings.MODULES:
        for setting in _torch_settings.names(module):
            if name in (None, setting, f"{module}.{setting}"):
                found = True
                row = _torch_settings.row_of(module, setting)
                print(f"{module}.{setting}: {row.effect}: {row.says}")
    if not found:
        print(f"torch {torch.__version__} has no setting {name!r}", file=sys.stderr)
        return 2
    for effect, meaning in _torch_settings.EFFECTS.items():
        if name is None:
            print(f"{effect}: {meaning}")
    return 0
