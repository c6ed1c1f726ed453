"""What differs between versions of torch and CPython stands in src/compat: no other source asks which one it is for."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())
SRC = ROOT / "src"
SOURCES = {p.relative_to(SRC): p.read_text() for p in sorted(SRC.rglob("*")) if p.suffix in {".cpp", ".h"}}
VERSIONS = re.compile(
    r"PY_(?:VERSION_HEX|MAJOR_VERSION|MINOR_VERSION|MICRO_VERSION)|TORCH_VERSION_(?:MAJOR|MINOR|PATCH)|TORCH_ABI_VERSION"
    r"|FLASHOVER_TORCH_AT_LEAST"
)
INTERNALS = re.compile(r"#\s*include <(?:internal/pycore_\w+|opcode(?:_ids)?)\.h>")


def lines_with(pattern: re.Pattern[str], compat: bool) -> list[str]:
    return [
        f"{path}:{number}: {line}"
        for path, text in SOURCES.items()
        if (path.parts[0] == "compat") == compat
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_only_compat_asks_for_versions() -> None:
    assert lines_with(VERSIONS, compat=True), "nothing found: the test would be empty"
    assert lines_with(VERSIONS, compat=False) == []


def test_only_compat_includes_cpythons_internals() -> None:
    assert lines_with(INTERNALS, compat=True), "nothing found: the test would be empty"
    assert lines_with(INTERNALS, compat=False) == []
