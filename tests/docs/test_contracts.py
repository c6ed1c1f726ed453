"""Contracts at the top of headers: In, Out, Promises, Declines, Sample, each on a line of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LABELS = "In|Out|Promises|Declines|Stages|CUDA|Sample"
ENTRY = re.compile(rf"^//   (?:{LABELS})(?: |$)", re.M)
HEADERS = sorted(p for p in (ROOT / "src").rglob("*.h") if ENTRY.search(p.read_text()))
# The columns of a contract: two slashes, three blanks, the label, and the text from column 14 on.
FIRST, NEXT = re.compile(rf"//   (?:{LABELS}) +\S"), " " * 11


def contract(header: Path) -> list[str]:
    """The lines from the first label to the end of the last entry."""
    lines = header.read_text().splitlines()
    labels = [i for i, line in enumerate(lines) if ENTRY.match(line)]
    last = labels[-1] + 1
    while last < len(lines) and lines[last].startswith("//" + NEXT):
        last += 1
    return lines[labels[0] : last]


def test_there_are_contracts() -> None:
    assert len(HEADERS) >= 30


@pytest.mark.parametrize("header", HEADERS, ids=lambda p: str(p.relative_to(ROOT)))
def test_each_label_starts_a_line_and_its_text_stands_in_one_column(header: Path) -> None:
    for line in contract(header):
        assert not re.search(r"[a-z,.)] (?:Promises|Declines|Out) +[a-z]", line), f"a label inside of a line: {line}"
        if FIRST.match(line):
            assert len(re.match(r"//   \w+ +", line)[0]) == 15, f"text begins in another column: {line}"  # type: ignore[index]
        else:
            assert line.startswith("//  " + NEXT), f"not in the column of the text: {line}"


def test_clang_format_leaves_comments_as_they_are() -> None:
    assert re.search(r"^ReflowComments: false$", (ROOT / ".clang-format").read_text(), re.M)
