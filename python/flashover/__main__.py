"""python -m flashover: what the machine has, the disk cache, options, and whole programs explained, timed, mended,
and faults of the compiler made small."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable

from flashover import _cli, _doctor, _minify, _script


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m flashover", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], summary: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=summary, description=summary)
        made.set_defaults(run=run)
        return made

    command("env", _cli.env, "versions, compilers, processor, GPU and settings: what a report of a fault should have")
    cache = command("cache", _cli.cache, "the disk cache")
    cache.add_argument("action", choices=("info", "clear", "path", "export"))
    cache.add_argument("file", nargs="?", help="of export: the archive to write, as .tar.gz")
    options = command("options", _cli.options, "options and modes of flashover.compile, with their meaning")
    options.add_argument("name", nargs="?", help="of one option")
    options.add_argument(
        "--torch", action="store_true", help="torch.compile's options and configuration, as they count"
    )
    command("runtime", _cli.runtime, "where the C++ runtime for packages lies: CMAKE_PREFIX_PATH for find_package")
    for name, run, key, summary in (
        ("sign", _cli.sign, "private key", "writes an ed25519 signature of a package beside it"),
        ("check", _cli.check, "public key", "looks whether a package is what a key signed"),
    ):
        made = command(name, run, summary)
        made.add_argument("file", metavar="FILE")
        made.add_argument("--key", required=True, metavar="PEM", help=f"the file with the {key}")
    explain = command("explain", _script.explain, "runs a program and says what became of what it compiles")
    explain.add_argument("--save", metavar="FOLDER", help="write the report there, too: index.html and more")
    doctor = command("doctor", _doctor.doctor, "runs a program and lists what costs time, with patches of its source")
    doctor.add_argument("--patch", metavar="FILE", help="write the patches there: apply them with patch -p0")
    bench = command("bench", _script.bench, "runs a program by eager, torch.compile and flashover, and times its calls")
    bench.add_argument("--only", metavar="NAMES", help="some of eager,torch.compile,flashover")
    minify = command("minify", _minify.minify, "runs a program up to a fault of the compiler and writes a script of it")
    minify.add_argument("-o", "--output", default="repro.py", metavar="FILE", help="the script (repro.py)")
    minify.add_argument("--timeout", type=float, metavar="SECONDS", help="for the program: later is a fault, too")
    minify.add_argument("--part-timeout", type=float, default=60.0, metavar="SECONDS", help="for each part of it (60)")
    minify.add_argument("--seconds", type=float, default=120.0, help="for making the script smaller, about (120)")
    for made in (explain, doctor, bench, minify):
        made.add_argument("script")
        made.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    return top


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    try:
        status: int = given.run(given)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads, as head does, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 128 + signal.SIGPIPE
    return status


if __name__ == "__main__":
    sys.exit(main())
