"""Where CPython calls into C++ stands a boundary (src/base/boundary.h): read off the sources, as layering is."""

import re
from pathlib import Path

SRC = Path(__file__).parent.parent.parent / "src"
TEXTS = {p: p.read_text() for p in sorted(SRC.rglob("*.cpp")) if not p.name.endswith("_test.cpp")}
# An entry point that is handed to CPython; group 1 is what is handed over.
GIVEN = [
    r"(?:\.|->)(?:tp|am|nb|sq|mp|bf)_(?!basicsize|itemsize|flags|name|doc|base|methods|members|getset|dictoffset"
    r"|weaklistoffset|vectorcall_offset|as_\w+|dict|free|alloc)\w+ = ([^;]+);",
    r"(?<= )\.tp_(?:new|dealloc|traverse|clear|repr) = ([^,}]+)",  # of CallableSlots
    r"->vectorcall = ([^;]+);",
    r"_PyInterpreterState_SetEvalFrameFunc\([^,]+(?:\(\))?, ([^;]+)\);",
    r"Py\w+_AddWatcher\(([^;]+?)\)",
    r'\{"\w+",\s*([^{}]+?),\s*(?:METH_\w+[ |]*)+,',  # a row of PyMethodDef
    r"std::exchange\(\w+->(?:get|set), ([^;]+)\);",
    r"->ml_meth = ([^;]+);",
]
CASTS = re.compile(r"^(?:(?:reinterpret|static)_cast<(?:[^<>]|<[^<>]*>)+>\()+")
OF_CPYTHON = re.compile(r"^(?:Py\w+|_Py\w+)(?:\.\w+|->\w+)*$|^previous$|^nullptr$|^slots\.tp_\w+$")


def entry_points() -> list[tuple[Path, str]]:
    """Every function that some file hands to CPython."""
    return [
        (path, CASTS.sub("", m.group(1)).strip().rstrip(")"))
        for path, text in TEXTS.items()
        for pattern in GIVEN
        for m in re.finditer(pattern, text)
    ]


def is_noexcept(text: str, name: str) -> bool:
    """Is the function, or the lambda that is given, declared so?"""
    if name.startswith("["):
        return bool(re.match(r"\[\]\([^)]*\) noexcept", name))
    return bool(re.search(rf"\b{re.escape(name)}\([^;{{]*\) noexcept", text))


def is_table(text: str, name: str) -> bool:
    """Is it taken from a table of such functions?"""
    table = re.match(r"(\w+)\[", name)
    return bool(table and re.search(rf"\b{table.group(1)}\{{at_boundary<[^}}]*\}};", text))


def test_no_exception_passes_into_cpython() -> None:
    bad = [
        f"{path.relative_to(SRC)}: {name}"
        for path, name in entry_points()
        if not name.startswith("at_boundary<")
        and not OF_CPYTHON.match(name)
        and not is_noexcept(TEXTS[path], name)
        and not is_table(TEXTS[path], name)
    ]
    assert not bad, f"neither at_boundary<...> nor noexcept: {bad}"


def test_the_entry_points_are_found() -> None:
    """Of each kind that there is: else the test above would be empty."""
    found = {name for _, name in entry_points()}
    for name in (
        "at_boundary<call>",  # vectorcall
        "at_boundary<callable_new>",  # tp_new
        "at_boundary<entries>",  # a method
        "at_boundary<time_warm_guards>",  # one behind casts
        "at_boundary<on_frame>",  # the frame hook
        "at_boundary<am_send>",
        "at_boundary<guard_bool>",
        "at_boundary<plain<I>>",  # torch's own methods
        "at_boundary<get_data>",
        "generator_dealloc",
        "on_change",  # a watcher of dicts
    ):
        assert name in found, f"{name} is not among {sorted(found)}"


def test_threads_let_nothing_out() -> None:
    """The body of a std::thread catches: what leaves it would end the process."""
    for path, text in TEXTS.items():
        for m in re.finditer(r"std::thread\(\[", text):
            body = text[m.start() : text.index("}).join()", m.start()) if "}).join()" in text[m.start() :] else None]
            assert "catch (const std::exception&)" in body, f"{path}: a thread without a catch"
