"""The sources keep the sizes and forms that CONTRIBUTING.md asks for; exceptions stand here, each with its reason."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())
SRC = ROOT / "src"
SOURCES = {p.relative_to(SRC): p.read_text() for p in sorted(SRC.rglob("*")) if p.suffix in {".cpp", ".h"}}
UNITS = {p: t for p, t in SOURCES.items() if p.suffix == ".cpp" and not p.stem.endswith("_test")}
TESTS = sorted((ROOT / "tests").rglob("*.py"))

EVALUATE = Path("frame/interpret/evaluate.cpp")  # the bytecode switch: a line or two for each instruction
LONG_FILES = {EVALUATE: 1200}
LONG_FUNCTIONS = {EVALUATE}
OPENING = re.compile(
    r"^(?P<indent>(?:  )?)(?!\s*(?:namespace|struct|class|enum|if|for|while|switch|else)\b)[A-Za-z_].*\)[^;]*\{$"
)


def functions(text: str) -> list[tuple[int, int]]:
    """(first line, lines) of each function that starts at column 0 or 2 and ends with a brace there."""
    found, start, end = [], 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if opening := OPENING.match(line):
            start, end = number, opening["indent"] + "}"
        elif start and line.startswith(end):
            found.append((start, number - start))
            start = 0
    return found


def classes(text: str) -> list[tuple[int, int]]:
    """(first line, lines) of each class or struct of a namespace."""
    found, start = [], 0
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"(class|struct) \w+.*\{$", line):
            start = number
        elif start and line == "};":
            found.append((start, number - start))
            start = 0
    return found


def test_the_parser_of_this_test_sees_functions_and_classes() -> None:
    text = "int f(int a) {\n  return a;\n}\nclass C : B {\n  void g() {\n    if (a) {\n    }\n  }\n};\n"
    assert functions(text) == [(1, 2), (5, 3)]
    assert classes(text) == [(4, 5)]
    assert sum(len(functions(t)) for t in UNITS.values()) > 3000
    assert sum(len(classes(t)) for t in SOURCES.values()) > 200


def test_no_source_is_long() -> None:
    assert [(str(p), n) for p, t in SOURCES.items() if (n := t.count("\n")) > LONG_FILES.get(p, 1000)] == []


def test_no_test_is_long() -> None:
    assert [(str(p.relative_to(ROOT)), n) for p in TESTS if (n := p.read_text().count("\n")) > 1000] == []


def test_no_function_is_long() -> None:
    long = [(f"{p}:{line}", n) for p, t in UNITS.items() for line, n in functions(t) if n > 100]
    assert [x for x in long if Path(x[0].split(":")[0]) not in LONG_FUNCTIONS] == []
    assert len(long) <= len(LONG_FUNCTIONS)


def test_no_class_is_long() -> None:
    assert [(f"{p}:{line}", n) for p, t in SOURCES.items() for line, n in classes(t) if n > 600] == []


@pytest.mark.parametrize("stage", sorted({p.parts[0] for p in UNITS}))
def test_each_unit_opens_with_what_it_is_for(stage: str) -> None:
    assert [str(p) for p, t in SOURCES.items() if p.parts[0] == stage and not t.startswith("//")] == []


def test_each_pass_has_a_test_of_its_name() -> None:
    """Text in, text out (golden_test.cpp), or a unit test. Passes that are a folder of their own are not asked here."""
    rows = set(re.findall(r'^    \{"(\w+)",$', (SRC / "graph" / "passes.cpp").read_text(), re.M))
    goldens = {p.stem for p in (SRC / "graph" / "passes" / "test").glob("*.ir")}
    goldens |= {p.stem.removesuffix("_test") for p in SOURCES if p.stem.endswith("_test")}
    units = {p.stem for p in UNITS if p.parts[:2] == ("graph", "passes")}
    assert len(rows & units) > 10
    assert (rows & units) - goldens == set()


def test_tests_stand_in_folders_by_subject() -> None:
    assert [p.name for p in (ROOT / "tests").glob("test_*.py")] == []


def test_modules_of_the_search_path_have_one_name_each() -> None:
    """pytest puts these folders on sys.path: of two files of one name a test would import the wrong one."""
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["pythonpath"]
    names = Counter(p.stem for folder in folders for p in (ROOT / folder).glob("*.py") if p.stem != "conftest")
    assert [name for name, times in names.items() if times > 1] == []
