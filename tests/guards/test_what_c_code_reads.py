"""What C code and library code reads of the program's objects by itself is seen: later calls get the state of then."""

import linecache
import operator
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import flashover

STATE = SimpleNamespace(k=2, inner=SimpleNamespace(k=2), items=[2], pattern=re.compile("[2-4]"))


def by_function(match: re.Match[str]) -> str:
    return f"{match[0]}{STATE.k}"


READS: dict[str, Callable[[], Any]] = {
    "an attribute in a format": lambda: "{0.k} {s.inner.k}".format(STATE, s=STATE),  # noqa: UP032 -- the subject
    "an item in a format": lambda: "{[0]}".format(STATE.items),  # noqa: UP032
    "a width in a format": lambda: "{:{w.k}d}".format(1, w=STATE),
    "a mapping in a format": lambda: "{a.k}".format_map({"a": STATE}),
    "a function given to re.sub": lambda: re.sub("a", by_function, "banana"),
    "a lambda given to re.subn": lambda: re.subn("a", lambda m: str(STATE.inner.k), "banana"),
    "a pattern given to re": lambda: re.sub(STATE.pattern, "x", "1234567"),
    "the end of an iterator": lambda: list(iter(iter([1, 2, 4, 5, 7]).__next__, STATE.k)),
    "the start of enumerate": lambda: list(enumerate("ab", STATE.k)),
    "the start of enumerate by name": lambda: list(enumerate("ab", start=STATE.k)),
    "attrgetter": lambda: operator.attrgetter("inner.k", "k")(STATE),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_state_that_changes(read: Callable[[], Any]) -> None:
    compiled = flashover.compile(lambda x: (x + 1, read()), fullgraph=True)
    for k in (2, 5, 7, 2):
        STATE.k = STATE.inner.k = STATE.items[0] = k
        STATE.pattern = re.compile(f"[{k}-9]")
        assert compiled(torch.ones(2))[1] == read()


def defaults(schema: Any) -> list[Any]:
    return [schema.name, schema.is_mutable, *(a.default_value for a in schema.arguments)]


def default(argument: Any) -> Any:
    return argument.default_value, argument.name, str(argument.type), argument.alias_info


def test_what_an_operators_schema_says() -> None:
    """Of the schema, or the argument, that this call has; another call may have another."""
    schemas = [torch.ops.aten.leaky_relu.default._schema, torch.ops.aten.add.Tensor._schema]
    whole, single = flashover.compile(defaults), flashover.compile(default)
    for schema in schemas * 2:
        assert whole(schema) == defaults(schema)
        for argument in schema.arguments:
            assert single(argument) == default(argument)
    assert whole.stats().versions == len(schemas)


def test_lines_of_files(tmp_path: Path) -> None:
    """linecache reads a file once, and again once it is told to look."""
    path = tmp_path / "text"
    compiled = flashover.compile(lambda x: (x + 1, linecache.getline(str(path), 1)))
    for text in ("one\n", "two\n", "three\n"):
        path.write_text(text)
        linecache.clearcache()
        assert compiled(torch.ones(2))[1] == text
