"""Patches of a user's source that take a graph break away: only rewrites whose meaning can be told from the syntax."""

from __future__ import annotations

import ast
import difflib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Lines first to last (counted from 1, both gone) become these; last < first: they are put before `first`."""

    first: int
    last: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Patch:
    file: str
    edits: tuple[Edit, ...]
    says: str  # what it does, and what to look at
    diff: str


def patch_for(kind: str, reason: str, where: str) -> Patch | None:
    """For a break for this reason at file:line; None: there is none that is sure."""
    file, _, line = where.rpartition(":")
    if kind != "graph break" or not line.isdigit() or not os.path.isfile(file):
        return None
    with open(file, encoding="utf-8") as opened:
        text = opened.read()
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    for pattern, rewrite in _REWRITES:
        if re.search(pattern, reason) and (made := rewrite(tree, text, int(line))):
            edits, says = made
            return Patch(file, edits, says, _diff(file, text, edits))
    return None


def merged(patches: list[Patch]) -> str:
    """One patch for each file."""
    by_file: dict[str, list[Edit]] = {}
    for p in patches:
        edits = by_file.setdefault(p.file, [])
        edits += [e for e in p.edits if e not in edits]
    out = []
    for file, edits in by_file.items():
        with open(file, encoding="utf-8") as opened:
            out.append(_diff(file, opened.read(), tuple(edits)))
    return "".join(out)


def _diff(file: str, text: str, edits: tuple[Edit, ...]) -> str:
    before = text.splitlines(keepends=True)
    if before and not before[-1].endswith("\n"):
        before[-1] += "\n"
    after = list(before)
    for e in sorted(edits, key=lambda e: -e.first):
        after[e.first - 1 : e.last] = [f"{line}\n" for line in e.lines]
    name = os.path.relpath(file)
    return "".join(difflib.unified_diff(before, after, name, name))


Rewrite = Callable[[ast.Module, str, int], tuple[tuple[Edit, ...], str] | None]


def _statement_at(tree: ast.Module, line: int, kind: type[ast.stmt]) -> ast.stmt | None:
    """The innermost statement of a kind that has the line in its head."""

    def last_line(n: ast.stmt) -> int:
        return (n.test.end_lineno if isinstance(n, ast.If) else n.end_lineno) or 0

    found = [n for n in ast.walk(tree) if isinstance(n, kind) and n.lineno <= line <= last_line(n)]
    return max(found, key=lambda n: n.lineno, default=None)


def _name_of_torch(tree: ast.Module) -> str | None:
    """What `import torch` binds at the top of the file."""
    for n in tree.body:
        if isinstance(n, ast.Import):
            for alias in n.names:
                if alias.name == "torch":
                    return alias.asname or "torch"
    return None


def _only_assignment(body: list[ast.stmt]) -> tuple[str, ast.expr] | None:
    """(name, value) of a block that is one `name = value`."""
    if len(body) != 1:
        return None
    s = body[0]
    if isinstance(s, ast.Assign) and len(s.targets) == 1 and isinstance(s.targets[0], ast.Name):
        return s.targets[0].id, s.value
    return None


def _only_computes(value: ast.expr) -> bool:
    """Both sides of torch.where are computed, so neither may write, or raise where the other was meant."""
    allowed = (ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant, ast.operator, ast.unaryop, ast.expr_context)
    return all(isinstance(n, allowed) for n in ast.walk(value))


def _branch_to_where(tree: ast.Module, text: str, line: int) -> tuple[tuple[Edit, ...], str] | None:
    """`if condition: y = a` (and perhaps `else: y = b`) -> `y = torch.where(condition, a, b)`."""
    found = _statement_at(tree, line, ast.If)
    torch_name = _name_of_torch(tree)
    if not isinstance(found, ast.If) or torch_name is None or found.end_lineno is None:
        return None
    source = text.splitlines()
    if not source[found.lineno - 1].lstrip().startswith("if "):  # an elif
        return None
    then = _only_assignment(found.body)
    other = _only_assignment(found.orelse) if found.orelse else None
    if then is None or (found.orelse and (other is None or other[0] != then[0])):
        return None
    name, value = then
    if not _only_computes(value) or (other and not _only_computes(other[1])):
        return None
    condition = ast.unparse(found.test)
    otherwise = ast.unparse(other[1]) if other else name
    indent = source[found.lineno - 1][: found.col_offset]
    new = f"{indent}{name} = {torch_name}.where({condition}, {ast.unparse(value)}, {otherwise})"
    says = "patch: both sides are computed and one is chosen; they must have one shape and type"
    return (Edit(found.lineno, found.end_lineno, (new,)),), says


def _reorder_print(tree: ast.Module, text: str, line: int) -> tuple[tuple[Edit, ...], str] | None:
    """print() may be put off to the end of the graph: torch's own setting, which Flashover follows."""
    torch_name = _name_of_torch(tree)
    found = _statement_at(tree, line, ast.Expr)
    if torch_name is None or not isinstance(found, ast.Expr):
        return None
    call = found.value
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"):
        return None
    imports = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    after = max(n.end_lineno or n.lineno for n in imports) + 1
    setting = f"{torch_name}._dynamo.config.reorderable_logging_functions.add(print)"
    lines = (f"import {torch_name}._dynamo", setting) if torch_name == "torch" else (setting,)
    return (Edit(after, after - 1, lines),), "patch: what is printed comes when the graph is done"


def _drop_graph_break(tree: ast.Module, text: str, line: int) -> tuple[tuple[Edit, ...], str] | None:
    """A statement that is nothing but graph_break()."""
    found = _statement_at(tree, line, ast.Expr)
    if not isinstance(found, ast.Expr) or found.end_lineno is None or not isinstance(found.value, ast.Call):
        return None
    if not ast.unparse(found.value.func).endswith("graph_break"):
        return None
    indent = text.splitlines()[found.lineno - 1][: found.col_offset]
    return (Edit(found.lineno, found.end_lineno, (f"{indent}pass",)),), "patch: without the break"


_REWRITES: list[tuple[str, Rewrite]] = [
    (r"data-dependent", _branch_to_where),
    (r"call of print", _reorder_print),
    (r"graph_break\(\)", _drop_graph_break),
]
