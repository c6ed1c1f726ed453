"""The pages are true where a machine can tell: their Python runs, and what they name is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from interpreters import fresh, python

ROOT = Path(__file__).resolve().parents[2]
README, CONTRIBUTING, DEBUGGING = ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs/developer/debugging.md"
USER = sorted((ROOT / "docs" / "user").glob("*.md"))
DEVELOPER = sorted((ROOT / "docs" / "developer").glob("*.md"))
BENCHMARKS = sorted((ROOT / "docs" / "benchmarks").glob("*.md"))
PAGES = [README, CONTRIBUTING, *(ROOT / "docs").glob("*.md"), *USER, *DEVELOPER]
SECONDS = 150  # for all blocks of a page, on a busy machine


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)


def spans(page: Path) -> set[str]:
    """What stands between backticks in the text."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    return set(re.findall(r"`([^`\n]+)`", text))


PROGRAMS = [
    p for p in [README, *USER, DEBUGGING] if python_blocks(p) and p.name != "first-hour.md"
]  # files: its own test


@pytest.mark.parametrize("page", PROGRAMS, ids=name)
def test_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    """One after the other in one process, as a reader would paste them."""
    program = tmp_path / "page.py"
    program.write_text("\n\n".join(python_blocks(page)))
    env = os.environ | {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "2"}
    env.pop("FLASHOVER_ISA", None)
    run = fresh if page == README else python  # one as a reader starts it
    done = run(program, cwd=tmp_path, env=env, timeout=SECONDS)
    assert done.returncode == 0, f"{name(page)}:\n{done.stderr[-3000:]}"


def test_most_user_pages_have_python() -> None:
    assert sum(bool(python_blocks(p)) for p in USER) >= 9


@pytest.mark.parametrize("page", [*PAGES, *BENCHMARKS], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), f"{name(page)} links to {target}"


def test_each_page_stands_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    for page in [*USER, *DEVELOPER]:
        assert f"({page.relative_to(ROOT / 'docs')})" in index, f"docs/README.md does not name {name(page)}"
    index = (ROOT / "docs" / "benchmarks" / "README.md").read_text()
    for page in BENCHMARKS:
        assert page.name == "README.md" or f"({page.name})" in index, f"docs/benchmarks/README.md lacks {page.name}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"(?<![\w/.(])docs/[\w./-]+\.md", text)) | set(
        re.findall(r"(?<![\w/.(])(?:tests|tools|benchmarks|examples)/[\w/]+\.\w+", text)
    )
    for span in spans(page):
        if re.fullmatch(r"[\w./-]+/[\w.-]+\.(h|cpp|def|py|ir|md|txt)", span) or re.fullmatch(r"src/[\w/]+", span):
            named.add(span)
    for path in named:
        path = path.split("::")[0]
        places = [ROOT / path, ROOT / "src" / path, ROOT / "python" / "flashover" / path, ROOT / "tests" / path]
        assert any(p.exists() for p in places), f"{name(page)} names {path}"


@pytest.mark.parametrize("page", [README, *USER], ids=name)
def test_functions_that_are_named_exist(page: Path) -> None:
    import flashover

    loggers = set(flashover._C.log_topics())
    for dotted in set(re.findall(r"\bflashover\.([A-Za-z_][\w.]*\w)", page.read_text())) - loggers:
        thing: object = flashover
        for part in dotted.split("."):
            assert hasattr(thing, part), f"{name(page)} names flashover.{dotted}"
            thing = getattr(thing, part)


@pytest.mark.parametrize("page", [README, CONTRIBUTING, *USER, *DEVELOPER], ids=name)
def test_options_modes_and_settings_that_are_named_exist(page: Path) -> None:
    import flashover

    text = page.read_text()
    options = set(re.findall(r"\boptions? `(\w+)`", text)) | set(re.findall(r'options=\{"(\w+)"', text))
    assert options <= set(flashover.list_options()), name(page)
    assert set(re.findall(r'\bmode="([\w-]+)"', text)) <= set(flashover.list_modes()), name(page)
    settings = set(re.findall(r"\bFLASHOVER_[A-Z_]+\b", text))
    sources = "".join(p.read_text() for p in [ROOT / "x", *(ROOT / "src").rglob("*.cpp"), *(ROOT / "src").rglob("*.h")])
    sources += "".join(p.read_text() for p in (ROOT / "python").rglob("*.py"))
    for setting in settings:
        assert re.search(rf"\b{setting}\b", sources), f"{name(page)} names {setting}"
    for command in set(re.findall(r"\./x (\w[\w-]*)", text)):
        assert re.search(rf"^  [^\n)]*\b{command}\b[^\n)]*\)", (ROOT / "x").read_text(), re.M), (
            f"{name(page)}: ./x {command}"
        )


def test_log_topics_of_the_pages_are_those_there_are() -> None:
    from flashover import _C

    for page in [README, CONTRIBUTING, *USER, *DEVELOPER]:
        for topics in re.findall(r"FLASHOVER_LOGS=([a-z,]+)", page.read_text()):
            _C.set_logs(topics)  # raises for an unknown one
    _C.set_logs(os.environ.get("FLASHOVER_LOGS", ""))


def test_pages_are_narrow() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 130
    for page in PAGES:
        for i, line in enumerate(page.read_text().splitlines(), 1):
            assert len(line) <= 120 or line.startswith("|"), f"{name(page)}:{i} has {len(line)} characters"


def test_picture_and_table_of_speedups_are_those_of_the_benchmarks() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    import speedups

    measured = speedups.measured()
    assert speedups.PICTURE.read_text() == speedups.svg(measured), "python tools/speedups.py draws it anew"
    rows = {
        r[0]: r[1:] for r in re.findall(r"^\| ([^|]+) \| (\d+) \| ([\d.]+)x \| ([\d.]+)x \|", README.read_text(), re.M)
    }
    for bars in measured:
        models, eager, torch_compile = rows[bars.name]
        assert int(models) == bars.models
        assert float(eager) == pytest.approx(bars.flashover, abs=0.011)
        assert float(torch_compile) == pytest.approx(bars.flashover / bars.torch_compile, abs=0.021)


@pytest.mark.parametrize("cores", [1, os.cpu_count()])
def test_one_model_page_is_what_its_script_writes(cores: int) -> None:
    """In a process of its own: the level of instructions is read once. Cores decide how many files kernels share."""
    script = ROOT / "tools" / "one_model.py"
    env = os.environ | {"PYTHONPATH": str(ROOT / "python"), "FLASHOVER_CACHE_DIR": ""}
    done = subprocess.run(
        [sys.executable, script, "--check"], env=env, capture_output=True, text=True, timeout=SECONDS,
        preexec_fn=lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores]),
    )  # fmt: skip
    assert done.returncode == 0, f"python tools/one_model.py writes it anew\n{done.stderr[-3000:]}"
