"""The layering of design.md, read off the #include lines: a stage includes only the stages before it."""

import re
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"
# stage -> stages it may include (itself always)
ALLOWED = {
    "base": set(),
    "sym": {"base"},
    "ops": {"base", "sym"},
    "target": {"base", "sym", "ops"},
    "graph": {"base", "sym", "ops", "target"},
    "plan": {"base", "sym", "ops"},
    "loops": {"base", "sym", "ops", "target", "graph", "plan"},
    "planner": {"base", "sym", "ops", "target", "graph", "plan", "loops"},
    "kernel": {"base", "sym", "ops", "target", "graph", "plan", "loops"},
    "compile": {"base", "sym", "ops", "target", "graph", "plan", "loops", "planner", "kernel"},
    "compat": set(),
    "torch": {"base", "sym", "ops"},
    "cpu_kernels": {"base", "sym", "ops", "target", "torch"},
    "package": {"base", "sym", "ops", "plan"},
    "run": {"base", "sym", "ops", "target", "plan", "torch", "cpu_kernels"},
    "aot": {"base", "sym", "ops", "target", "plan", "torch", "cpu_kernels", "run", "package"},
    "runtime": {"base", "ops", "plan", "package", "aot"},
    "bare": {"base", "sym", "ops", "target", "plan", "package", "cpu_kernels", "run", "runtime"},
    "eager": {"base", "sym", "ops", "graph", "torch"},
    "trace": {"base", "compat", "sym", "ops", "graph", "torch", "eager"},
    "guards": {"base", "compat", "sym", "ops", "torch"},
    "frame": {"base", "compat", "sym", "ops", "graph", "guards", "trace"},
    "entry": {
        *("base", "sym", "ops", "target", "graph", "plan", "planner", "compile", "torch", "run", "eager", "trace"),
        *("compat", "guards", "frame"),
    },
}
PURE = {"base", "sym", "ops", "target", "graph", "plan", "package", "loops", "planner", "kernel", "compile"}
TEST_FILES = ("_test.cpp", "_for_test.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)


def includes(stage: str) -> list[tuple[Path, str]]:
    files = [p for ext in ("*.h", "*.cpp") for p in (SRC / stage).rglob(ext)]
    return [(p, i) for p in files for i in INCLUDE.findall(p.read_text())]


@pytest.mark.parametrize("stage", sorted(ALLOWED))
def test_stage_includes_only_earlier_stages(stage: str) -> None:
    seen = includes(stage)
    assert seen, f"no includes found in src/{stage}: the check would be empty"
    for path, name in seen:
        first = name.split("/")[0]
        if (SRC / name).exists():  # torch has folders of equal names
            assert first == stage or first in ALLOWED[stage], f"{path.relative_to(SRC)} includes {name}"


def links(stage: str) -> set[str]:
    """The libraries that stage is linked with, as CMakeLists.txt says."""
    cmake = (SRC.parent / "CMakeLists.txt").read_text()
    deps = re.search(rf"flashover_layer\({stage}\b[^)]*?(?:DEPS ([^)]*))?\)", cmake)
    assert deps, stage
    direct = set((deps[1] or "").split())
    return direct.union(*(links(d) for d in direct))


def test_what_runs_plans_does_not_reach_the_compiler() -> None:
    compiler = {"graph", "loops", "planner", "kernel", "compile", "trace", "guards", "frame", "eager", "entry"}
    assert "run" in links("entry") and "kernel" in links("entry")
    for stage in ("run", "cpu_kernels", "aot"):
        assert not compiler & ALLOWED[stage], f"includes of src/{stage}"
        assert not compiler & links(stage), f"libraries of src/{stage}"


@pytest.mark.parametrize("stage", sorted(PURE))
def test_pure_stage_sees_neither_torch_nor_python(stage: str) -> None:
    for path, name in includes(stage):
        assert not re.match(r"(ATen|c10|torch/(?!\w+\.h$)|Python\.h|pybind11)", name), f"{path} includes {name}"


def test_only_src_python_uses_pybind11() -> None:
    for stage in ALLOWED:
        for path, name in includes(stage):
            assert "pybind11" not in name, f"{path} includes {name}"


def test_nobody_uses_std_filesystem() -> None:
    """libtorch exports an own, older copy of parts of std::filesystem: calls that land there crash the process."""
    for stage in [*ALLOWED, "entry", "python"]:
        for path, name in includes(stage) if (SRC / stage).exists() else []:
            if path.name.endswith(TEST_FILES):
                continue  # the test programs of pure layers do not load torch
            assert name != "filesystem", f"{path} includes <filesystem>"


def test_no_iostreams() -> None:
    """Two copies of the C++ library in one process share no locale state: streams then crash (base/text.h)."""
    streams = {"iostream", "sstream", "fstream", "iomanip", "ostream", "istream", "regex", "locale"}
    for stage in [*ALLOWED, "python"]:
        for path, name in includes(stage) if (SRC / stage).exists() else []:
            if not path.name.endswith(TEST_FILES):
                assert name not in streams, f"{path} includes <{name}>"


# These follow the process's locale, which a GUI toolkit may set at any time: a decimal comma, grouped digits.
LOCALE_DEPENDENT = re.compile(
    r"\b(?:v?sn?printf|sscanf|fscanf|strto(?:d|f|ld|l|ll|ul|ull)|ato(?:f|i|l|ll)|sto(?:d|f|ld|i|l|ll|ul|ull)"
    r"|is(?:alnum|alpha|digit|xdigit|space|punct|print|upper|lower)|to(?:upper|lower)|setlocale|strftime|put_time)\s*\("
)


def test_numbers_are_written_and_read_without_the_locale() -> None:
    """Numbers go through base/decimal.h; fprintf for people may not print a floating-point number either."""
    for path in [*SRC.rglob("*.cpp"), *SRC.rglob("*.h")]:
        if path.name.endswith("_test.cpp") or path.is_relative_to(SRC / "base"):
            continue
        code = re.sub(r"//[^\n]*", "", path.read_text())
        found = LOCALE_DEPENDENT.search(code)
        assert not found, f"{path.relative_to(SRC)} calls {found.group()}: use base/decimal.h"
        for call in re.findall(r"fprintf\([^;]*;", code):
            assert not re.search(r"%[-+ #0']*[\d.*]*[efgaEFGA]\b", call), f"{path.relative_to(SRC)}: {call}"
