"""The programs of language_programs.py and live_at_break_programs.py with graph breaks put between their statements, at
random, at any depth: each still gives what it gives uncompiled.

    python tests/fuzz/fuzz_inserted.py --seconds 600
"""

from __future__ import annotations

import search_path

import ast
import inspect
import random
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import language_programs
import live_at_break_programs
import torch
from fuzz_breaks import long_mode
from outcomes import outcome

import flashover

GROUPS = (language_programs, live_at_break_programs)
# What they give depends on the process or on the lines of the file; a tensor that was made in inference mode is a plain
# one when it has left a graph.
LEFT_OUT = {"threads", "sysinfo", "exec_eval", "frames_of_its_own", "w_inference"}


class Inserted(ast.NodeTransformer):
    def __init__(self, r: random.Random, share: float) -> None:
        self.r, self.share = r, share

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for i, s in enumerate(statements):
            words = i == 0 and isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)
            if not words and not isinstance(s, (ast.Global, ast.Nonlocal)) and self.r.random() < self.share:
                out.append(ast.Expr(ast.Call(ast.Name("insert_break", ast.Load()), [], [])))
            self.visit(s)
            out.append(s)
        return out

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for _, value in ast.iter_fields(node):
            if not isinstance(value, list):
                continue
            if value and isinstance(value[0], ast.stmt):
                value[:] = self.block(value)
            for part in value:
                if isinstance(part, (ast.ExceptHandler, ast.match_case)):
                    self.visit(part)
        return node


def program_of(seed: int) -> tuple[Callable[..., Any], str]:
    r = random.Random(seed)
    group = r.choice(GROUPS)
    f = r.choice([g for g in group.PROGRAMS if g.__name__ not in LEFT_OUT])
    tree = ast.parse(textwrap.dedent(inspect.getsource(f)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    Inserted(r, r.choice([0.1, 0.3, 0.6])).visit(definition)
    source = ast.unparse(ast.fix_missing_locations(tree))
    space = f.__globals__
    before = space[f.__name__]
    space["insert_break"] = flashover.graph_break
    exec(compile(source, f"<inserted {seed}>_programs.py", "exec"), space)
    program, space[f.__name__] = space[f.__name__], before
    return program, source


def check(seed: int, backend: str = "eager") -> str:
    """Empty, or what is wrong."""
    program, source = program_of(seed)
    with torch.no_grad():
        want = [outcome(program, k) for k in (0, 1, 0)]
        if want != [outcome(program, k) for k in (0, 1, 0)]:
            return ""
        flashover.reset()
        compiled = flashover.compile(program, backend=backend)
        for k, w in zip((0, 1, 0), want, strict=True):
            got = outcome(compiled, k)
            if got != w:
                return f"seed {seed}:\n{source}\nwant {str(w)[:3000]}\n got {str(got)[:3000]}"
    return ""


if __name__ == "__main__":
    programs, failures = long_mode(check)
    print(f"{programs} programs, {failures} wrong")
    sys.exit(failures > 0)
