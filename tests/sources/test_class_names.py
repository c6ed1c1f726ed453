"""A class that a header of one stage declares has a name that no other stage's headers use for something else."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())
DECLARED = re.compile(r"^(?:class|struct|enum class) (?!std::)(?:alignas\S+ )?(\w+)\b[^;]*?\{", re.MULTILINE)

# One word, one meaning: each stage has its own of these.
A_STAGE_EACH = {
    "Counters": "what a stage counts",
    "Emission": "the state of an emitter",
    "EmittedValue": "an instruction's result as it stands in the text",
    "Kernel": "a kernel: its loops, and how a plan launches it",
    "Options": "what may be asked of a stage",
    "Ref": "a reference: to a value of the graph, to a Python object",
}


def class_names() -> dict[str, set[str]]:
    """Name -> the folders of the headers that declare it at the level of a namespace."""
    found: dict[str, set[str]] = defaultdict(set)
    for header in (ROOT / "src").rglob("*.h"):
        if "test" in header.stem:
            continue
        for name in DECLARED.findall(header.read_text()):
            found[name].add(header.parent.relative_to(ROOT / "src").as_posix())
    return found


def test_a_class_name_has_one_meaning() -> None:
    found = class_names()
    assert len(found) > 300
    twice = {name: sorted(folders) for name, folders in found.items() if len(folders) > 1 and name not in A_STAGE_EACH}
    assert not twice


def test_the_words_that_stages_share_are_shared() -> None:
    found = class_names()
    assert [name for name in A_STAGE_EACH if len(found[name]) < 2] == []
