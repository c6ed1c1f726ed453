"""Programs over size symbols whose Triton kernels are run in Triton's interpreter, one plan at several sizes.

`python triton_sized.py [name ... | --part i n]` (TRITON_INTERPRET=1) prints one JSON object: name -> what is wrong,
or null."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "sizes")]

from support.symbolic import Program, guarded_graph, strides_that_count  # noqa: E402
from test_operators_at_any_size import OPERATORS  # noqa: E402
from test_programs_at_any_size import PROGRAMS  # noqa: E402

SIZES = [(0,), (1,), (2,), (7,), (16,), (65,)]
LEFT_OUT = {"complex", "fft"}  # the interpreter has no such dtype
PAIRS = [(0, 6), (9, 0), (1, 1), (2, 3), (7, 8), (16, 16), (3, 70)]


def wrong_at(program: Program, made: dict[str, object], at: tuple[int, ...]) -> str:
    from triton_tools import Runner

    inputs = [t for _, t in program.inputs(*at)]
    given = [t.clone() for t in inputs]
    want = program.fn(*inputs)
    want = [want] if isinstance(want, torch.Tensor) else list(want)
    got = Runner(made, {f"s{i}": n for i, n in enumerate(at)}).run(given)
    for g, w in zip([*got, *given], [*want, *inputs], strict=True):
        if g.dtype != w.dtype or g.shape != w.shape or strides_that_count(g) != strides_that_count(w):
            return f"{at}: {g.dtype} {tuple(g.shape)} {g.stride()} for {w.dtype} {tuple(w.shape)} {w.stride()}"
        scale = max(1.0, w.float().abs().max().item()) if w.numel() else 1.0
        bound = max(program.tolerance, 1e-4)
        if not torch.allclose(g, w, rtol=bound, atol=bound * scale, equal_nan=True):
            return f"{at}: off by {(g.double() - w.double()).abs().max().item()}"
    return ""


def check(program: Program) -> str | None:
    from flashover import _C

    torch.manual_seed(0)
    made = _C.triton_program(guarded_graph(program), processors=8)
    for at in SIZES if program.symbols == 1 else PAIRS:
        if min(at) >= program.least and (wrong := wrong_at(program, made, at)):
            return wrong + "\n" + "\n".join([*made["loops"], *(k["text"] for k in made["kernels"])])
    return None


if __name__ == "__main__":
    programs = {name: p for name, p in (OPERATORS | PROGRAMS).items() if name not in LEFT_OUT}
    names = sys.argv[1:] or list(programs)
    if names[0] == "--part":
        names = list(programs)[int(names[1]) :: int(names[2])]
    result = {}
    for name in names:
        try:
            result[name] = check(programs[name])
        except Exception:
            result[name] = traceback.format_exc()
    print("RESULT" + json.dumps(result))
