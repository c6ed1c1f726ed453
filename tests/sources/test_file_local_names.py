"""Names in unnamed namespaces are unique within a layer: its files are compiled several at a time (cmake/Layers.cmake).

Two of one name mostly do not compile then, but functions with other parameters would overload each other in silence.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())
SRC = ROOT / "src"
ALONE = {"cpu_kernels"}  # with options of their own, files are compiled each alone
FUNCTION = re.compile(
    r"^(?!(?:using|return|namespace|static_assert|template|else|case)\b)[A-Za-z_][^=;(]*?[\s*&](\w+)\("
)
TYPE = re.compile(r"^(?:struct|class|enum(?: class)?) (\w+)[^;]*\{|^using (\w+) = ")
VARIABLE = re.compile(r"^(?!namespace)[A-Za-z_][^=;(){}]*[\s*&](\w+)(?:\[[^\]]*\])*(?: = |\{|;)")


def declared(line: str) -> str | None:
    for pattern in (TYPE, FUNCTION, VARIABLE):
        if m := pattern.match(line):
            return next((name for name in m.groups() if name), None)
    return None


def local_names(text: str) -> dict[str, tuple[str, str]]:
    """What unnamed namespaces declare: name -> (enclosing namespace, first line)."""
    found: dict[str, tuple[str, str]] = {}
    outer: list[str] = []
    raw = False
    for line in text.splitlines():
        was_raw, raw = raw, raw ^ (line.count('R"') > line.count(')"') or (raw and ')"' in line))
        if was_raw:
            continue
        if m := re.match(r"namespace (?:([\w:]+) )?\{$", line):
            outer.append(m[1] or "")
        elif line.startswith("}  // namespace"):
            outer.pop()
        elif outer and outer[-1] == "" and (name := declared(line)):
            found.setdefault(name, ("::".join(filter(None, outer)), line))
    return found


def test_the_parser_of_this_test_sees_local_names() -> None:
    text = (
        "namespace flashover {\nnamespace {\n\nconstexpr int kMost = 3;\nconst Row kRows[] = {\n    {1, f},\n};\n"
        "struct Row {\n  int a;\n};\nusing Values = int;\ntemplate <class T>\nstd::vector<T> list_of(const T& t) {\n"
        "  return g(t);\n}\nPyObject* made;\n}  // namespace\n\nint outside() {\n}\n}  // namespace flashover\n"
    )
    assert set(local_names(text)) == {"kMost", "kRows", "Row", "Values", "list_of", "made"}
    found = [local_names(p.read_text()) for p in SRC.rglob("*.cpp")]
    assert sum(map(len, found)) > 2000


@pytest.mark.parametrize("tests", [False, True])
@pytest.mark.parametrize("layer", sorted(p.name for p in SRC.iterdir() if p.is_dir() and p.name not in ALONE))
def test_local_names_are_unique_within_a_layer(layer: str, tests: bool) -> None:
    by_name: dict[tuple[str, str], dict[Path, str]] = defaultdict(dict)
    for path in sorted((SRC / layer).rglob("*.cpp")):
        if "aarch64" in path.parts:  # no build has this folder and x86, which is beside it
            continue
        if path.stem.endswith("_test") == tests:
            for name, (namespace, line) in local_names(path.read_text()).items():
                by_name[namespace, name][path.relative_to(SRC)] = line
    twice = {
        key: list(where)
        for key, where in by_name.items()
        if len(where) > 1 and not (len(set(where.values())) == 1 and next(iter(where.values())).startswith("using "))
    }
    assert twice == {}
