"""The documentation as a site (./x docs): its navigation and API reference are complete, and it builds without a
warning where mkdocs is installed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flashover

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "tools"))
import docs_site  # noqa: E402

TORCHS = {"AdditionalInputs", "Dim", "ShapesCollection"}


def pages(nav: object) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    parts = nav.values() if isinstance(nav, dict) else nav
    return set().union(*map(pages, parts))  # type: ignore[arg-type]


def test_each_page_is_in_the_navigation() -> None:
    assert pages(docs_site.navigation()) == {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md")}


def test_each_public_name_is_in_the_reference() -> None:
    text = (DOCS / "api.md").read_text()
    named = {name.rpartition(".")[2] for name in re.findall(r"^::: (flashover[\w.]*)$", text, re.M)}
    assert named == set(flashover.__all__) - TORCHS and all(f"flashover.{name}" in text for name in TORCHS)


def test_each_public_name_has_a_docstring() -> None:
    for name in flashover.__all__:
        assert (getattr(flashover, name).__doc__ or "").strip(), name


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed: ./x docs has its own")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
