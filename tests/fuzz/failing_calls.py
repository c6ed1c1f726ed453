"""The n-th allocation or file call of a process fails: tests/fuzz/failing_calls.cpp, built and preloaded."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "failing_calls.cpp"
LIBRARY = "FAILING_CALLS_LIBRARY"  # where it is, in the environment of a process that has it
NEW, MALLOC, FILES = 1, 2, 3
MOST_FRAMES = 64
STACK_WORDS, STACKS = MOST_FRAMES + 1, 3
SITE_FRAMES = 48  # of a site, at most
MOST_SITES = 1 << 16


def shared_library(name: str) -> str:
    """The path of a shared library that this process would load."""
    ctypes.CDLL(name)
    maps = Path("/proc/self/maps").read_text().split()
    return next(word for word in maps if word.rsplit("/", 1)[-1].startswith(name.split(".so")[0] + ".so"))


def run_again_with_library() -> None:
    """Starts this program again in this process, with the library preloaded."""
    # Some compilers link libstdc++ statically. Then the library would have handlers and unwinding of its own, and would
    # look in vain for the program's.
    cxx = shared_library("libstdc++.so.6")
    folder = tempfile.mkdtemp(prefix="failing-calls-")
    library = f"{folder}/failing_calls.so"
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-shared", "-fPIC", "-o", library, str(SOURCE)]
    try:
        subprocess.run([*command, cxx, "-ldl"], check=True)
    except (OSError, subprocess.CalledProcessError):
        shutil.rmtree(folder, ignore_errors=True)
        raise
    before = os.environ.get("LD_PRELOAD", "")
    env = dict(os.environ, LD_PRELOAD=f"{library}:{before}".rstrip(":"))
    env[LIBRARY] = library
    os.execve(sys.executable, [sys.executable, *sys.argv], env)


@dataclass
class Death:
    """How a process died: addresses, innermost first; empty if it did not."""

    stack: list[int] = field(default_factory=list)
    last_failure: list[int] = field(default_factory=list)  # the stack of the last call that failed
    exception_at: int = 0  # where in that stack its exception was when it could go no further

    def owner(self) -> str:
        """The library, and function as far as it is known, whose own fault this death was. Empty: it may be ours."""
        return self._let_out() or self._went_on() or self._ran_nothing()

    def _let_out(self) -> str:
        """A function that must not be left by an exception and was, by one that its own callees threw: what calls it
        can do nothing about it."""
        libraries = [library_of(address) for address in self.last_failure]
        if self.exception_at not in self.last_failure:
            return ""
        at = self.last_failure.index(self.exception_at)
        if any(is_ours(library) for library in libraries[: at + 1]):
            return ""
        if not any("terminate" in n or "gxx_personality" in n for n in names_of(self.stack)):
            return ""
        inner = [a for a, library in zip(self.last_failure, libraries, strict=True) if library == libraries[at]]
        named = (exported_name(address) for address in inner)
        return f"{os.path.basename(libraries[at])}, in {next((n for n in named if n != '??'), '??').split('(')[0]}"

    def _went_on(self) -> str:
        """A library that used what an allocation of its own had not given it, in the same call of it."""
        died, failed = self.stack[::-1], self.last_failure[::-1]
        common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(died, failed, strict=False)))
        inner = [library_of(address) for address in died[common:] + failed[common:]]
        where, which = caller(self.stack), caller(self.last_failure)
        if not failed or where != which or any(is_ours(library) for library in inner):
            return ""
        return f"{os.path.basename(where)}, which goes on without what it allocated"

    def _ran_nothing(self) -> str:
        """A library that jumped to code which it had no memory to write (oneDNN and MKL make theirs in mapped memory):
        no frame is known beyond the handler's, and the last call that failed was that library's own."""
        failed = caller(self.last_failure)
        if not self.stack or caller(self.stack) or not failed or is_ours(failed):
            return ""
        return f"{os.path.basename(failed)}, which ran code that it had no memory for"


def is_ours(library: str) -> bool:
    """Our extension. (Kernels neither allocate nor throw.)"""
    return "flashover/_C" in library


def caller(stack: list[int]) -> str:
    """The library whose call failed, or that a signal stopped: the innermost that is none of the system's."""
    system = ("failing_calls", "libc.so", "libstdc++", "libgcc_s", "ld-linux")
    libraries = (library_of(address) for address in stack)
    return next((x for x in libraries if x and not os.path.basename(x).startswith(system)), "")


class SiteWords(ctypes.Structure):
    """A site as the library writes it."""

    _fields_ = (
        ("hash", ctypes.c_uint64),
        ("first", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("depth", ctypes.c_uint64),
        ("frames", ctypes.c_uint64 * SITE_FRAMES),
    )


def range_of(needle: str) -> tuple[int, int]:
    """The addresses of the loaded library whose path has this in it; (0, 0): none has."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    ends = [int(x, 16) for parts in lines if len(parts) == 6 and needle in parts[5] for x in parts[0].split("-")]
    return (min(ends), max(ends)) if ends else (0, 0)


class Failing:
    """Arms the library of this process; forked children share the memory that holds the stack of what failed."""

    def __init__(self) -> None:
        path = os.environ[LIBRARY]
        self.library = ctypes.CDLL(path)
        self.library.failing_arm.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_int, ctypes.c_int]
        self.library.failing_disarm.restype = ctypes.c_long
        self.share()
        self.library.failing_arm_site.argtypes = [
            ctypes.c_int,
            ctypes.c_uint64,
            ctypes.c_long,
            ctypes.c_uint64,
            ctypes.c_int,
            ctypes.c_int,
        ]
        self.library.failing_sites.argtypes = [ctypes.c_void_p] + [ctypes.c_uint64] * 7
        self.table: ctypes.Array[SiteWords] | None = None

    def share(self) -> None:
        """Memory for what fails in this process and those that it forks: beside other processes it needs its own."""
        self.shared = mmap.mmap(-1, mmap.PAGESIZE)
        self.words = (ctypes.c_uint64 * (STACKS * STACK_WORDS + 2)).from_buffer(self.shared)
        self.library.failing_share(ctypes.byref(self.words))

    @staticmethod
    def remove_folder() -> None:
        """At the end of the process that built it."""
        shutil.rmtree(os.path.dirname(os.environ[LIBRARY]), ignore_errors=True)

    def arm(self, kind: int, n: int, error: int = 0, all_after: bool = False) -> None:
        """The n-th call of this kind fails from here on; 0: they are only counted."""
        self.library.failing_arm(kind, n, error, int(all_after))

    def arm_site(self, kind: int, site: int, n: int, k: int, error: int = 0, all_after: bool = False) -> None:
        """The k-th call at a site fails, among the calls from the n-th on."""
        self.library.failing_arm_site(kind, site, n, k, error, int(all_after))

    def record_sites(self, kind: int) -> None:
        """From here on the sites of calls are noted, by this process and those forked from it."""
        self.library.failing_record(kind)

    def make_table(self, frames: int, beneath: bool) -> None:
        """Room for sites: so many frames within our extension, and those beneath them or not."""
        memory = mmap.mmap(-1, MOST_SITES * ctypes.sizeof(SiteWords))
        self.table = (SiteWords * MOST_SITES).from_buffer(memory)
        ours, own = range_of("flashover/_C"), range_of(os.environ[LIBRARY])
        assert ours[1] and own[1], "which frames are whose?"
        self.library.failing_sites(ctypes.byref(self.table), MOST_SITES, *ours, frames, int(beneath), *own)

    def sites(self) -> list[SiteWords]:
        """The sites that were noted, in the order in which a call came to them first."""
        assert self.table is not None
        return sorted((s for s in self.table if s.hash), key=lambda s: s.first)

    def disarm(self) -> int:
        """Nothing fails any more; how many calls there were."""
        return int(self.library.failing_disarm())

    def forget_stack(self) -> None:
        """Before a child is started."""
        ctypes.memset(self.words, 0, ctypes.sizeof(self.words))

    def stack(self) -> list[int]:
        """The return addresses at the first call that failed, innermost first."""
        return self._stack_at(0)

    def failed_at(self) -> int:
        """The number of the first call that failed; 0: none did."""
        return int(self.words[STACKS * STACK_WORDS + 1])

    def death(self) -> Death:
        """How the process died."""
        return Death(self._stack_at(1), self._stack_at(2), int(self.words[STACKS * STACK_WORDS]))

    def _stack_at(self, which: int) -> list[int]:
        at = which * STACK_WORDS
        return [int(self.words[at + i + 1]) for i in range(min(int(self.words[at]), MOST_FRAMES))]


KNOWN: dict[tuple[str, int], str] = {}  # names that addr2line gave


class Symbol(ctypes.Structure):
    """What dladdr says of an address."""

    _fields_ = (
        ("library", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def symbol_at(address: int) -> Symbol:
    """What the dynamic linker knows."""
    symbol = Symbol()
    ctypes.CDLL(None).dladdr(ctypes.c_void_p(address - 1), ctypes.byref(symbol))
    return symbol


def library_of(address: int) -> str:
    """The path of the library that a return address lies in."""
    return (symbol_at(address).library or b"").decode(errors="replace")


def exported_name(address: int) -> str:
    """Of the function at an address, as far as its library exports it: others are stripped of all names but these."""
    symbol = symbol_at(address)
    if not symbol.name:
        return "??"
    free = ctypes.CDLL(None).free
    demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    demangle.restype = ctypes.c_void_p
    told = demangle(symbol.name, None, None, None)
    text = ctypes.cast(told, ctypes.c_char_p).value if told else symbol.name
    free(ctypes.c_void_p(told))
    return (text or b"??").decode(errors="replace")


def names_of(addresses: list[int], needle: str = "") -> list[str]:
    """Their functions, by addr2line; of those in libraries whose path has `needle` in it."""
    maps = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5].startswith("/"):
            low, high = (int(x, 16) for x in parts[0].split("-"))
            maps.append((low, high, int(parts[2], 16), parts[5]))
    base = {}
    for low, _, offset, path in maps:
        if offset == 0:
            base.setdefault(path, low)
    places = [
        next(((path, address - base.get(path, low)) for low, high, _, path in maps if low <= address < high), ("", 0))
        for address in addresses
    ]
    for library in {path for path, _ in places if path and needle in path}:
        inside = [offset for path, offset in places if path == library and (path, offset) not in KNOWN]
        if not inside:
            continue
        if "flashover" not in library:  # the others have no names beside those that they export
            KNOWN.update({(path, offset): "??" for path, offset in places if path == library})
            continue
        command = ["addr2line", "-f", "-C", "-e", library, *(hex(offset - 1) for offset in inside)]
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()[::2]
        KNOWN.update({(library, offset): name for offset, name in zip(inside, lines, strict=False)})
    return [
        f"{os.path.basename(p[0])}: {KNOWN[p] if KNOWN[p] != '??' else exported_name(address)}"
        for p, address in zip(places, addresses, strict=True)
        if p in KNOWN and needle in p[0]
    ]
