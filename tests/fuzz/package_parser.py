"""Builds the libFuzzer target package_parser.cpp with clang, ASan and UBSan, and runs it on pieces of real packages.

python tests/fuzz/package_parser.py --seconds 600 [--build build/parser] model.flash ...
"""

from __future__ import annotations

import argparse
import os
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAYERS = ("base", "sym", "ops", "plan", "package")
FLAGS = ["-std=c++20", "-O1", "-g1", "-fsanitize=fuzzer-no-link,address,undefined", "-fno-sanitize-recover=undefined"]
PLAN_HEADER = 36  # magic, version, size, checksum


def compile_target(folder: Path) -> Path:
    sources = [p for layer in LAYERS for p in sorted((ROOT / "src" / layer).rglob("*.cpp"))]
    sources = [p for p in sources if not p.stem.endswith("_test")] + [Path(__file__).with_suffix(".cpp")]

    def build(source: Path) -> Path:
        made = folder / (str(source.relative_to(ROOT)).replace("/", "_") + ".o")
        if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
            subprocess.run(["clang++", *FLAGS, f"-I{ROOT / 'src'}", "-c", str(source), "-o", str(made)], check=True)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(build, sources))
    program = folder / "package_parser"
    linked = ["-fsanitize=fuzzer,address,undefined", "-ldl"]
    subprocess.run(["clang++", *map(str, objects), *linked, "-o", str(program)], check=True)
    return program


def seeds_of(package: Path) -> list[bytes]:
    """The manifest and a plan, as the target takes them, for each plan: those for GPUs hold cubins."""
    data = package.read_bytes()
    size = struct.unpack_from("<Q", data, 24)[0]
    table, at, found = data[48 : 48 + size], 0, {}

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = table[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    for _ in range(number()):
        length = number()
        name = table[at : at + length].decode()
        offset, size = struct.unpack_from("<QQ", table, at + length)
        at += length + 32
        found[name] = data[offset : offset + size]
    head = struct.pack("<I", len(found["manifest"])) + found["manifest"]
    return [head + v[PLAN_HEADER:] for k, v in found.items() if k.startswith("plan ")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", type=Path)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "parser")
    options = parser.parse_args()
    corpus = options.build / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    program = compile_target(options.build)
    for package in options.packages:
        for i, seed in enumerate(seeds_of(package)):
            (corpus / f"{package.stem}.{i}").write_bytes(seed)
    limits = [f"-max_total_time={options.seconds}", "-timeout=20", "-rss_limit_mb=2500", "-max_len=65536"]
    return subprocess.run([str(program), str(corpus), *limits, "-print_final_stats=1"], cwd=options.build).returncode


if __name__ == "__main__":
    raise SystemExit(main())
