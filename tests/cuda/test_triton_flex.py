"""flex_attention's Triton kernels without a GPU: right in the interpreter, built for sm_90."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from triton_interpreter import interpret

pytest.importorskip("triton")

import triton_flex
from flex_programs import PROGRAMS, Sizes
from trace_tools import Program, trace

from flashover import _C

HERE = Path(__file__).resolve().parent


@pytest.mark.timeout(300)
def test_kernels_agree_with_eager() -> None:
    got = interpret(HERE / "triton_flex.py")
    assert len(got) >= 2 * len(PROGRAMS)
    assert not {k: v for k, v in got.items() if v}


SIMPLE, INVOLVED = ("full", "table_of_table"), ("combined", "dense_bias")
BUILDS = [
    (torch.bfloat16, 64, SIMPLE + INVOLVED),
    (torch.bfloat16, 256, INVOLVED),
    (torch.float32, 128, INVOLVED),
    pytest.param(torch.bfloat16, 256, SIMPLE, marks=pytest.mark.slow),  # Triton takes seconds for each kernel
    pytest.param(torch.float32, 128, SIMPLE, marks=pytest.mark.slow),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("dtype", "width", "names"), BUILDS, ids=str)
def test_kernels_compile_for_sm_90(dtype: torch.dtype, width: int, names: tuple[str, ...]) -> None:
    sources = []
    for name in names:
        for make in (triton_flex.case, triton_flex.backward):
            f, args = make(name, Sizes(2, 4, 512, 512), dtype, block=128, width=width, value_width=width)
            program = _C.triton_program(trace(Program(f, args)).text)
            sources += [k for k in program["kernels"] if k["name"].startswith("k_flex_attention")]
    assert len(sources) == len(names) * (1 + 4)
    for s, c in zip(sources, _C.triton_build(sources), strict=True):
        assert c["bytes"] and not c["error"], s["text"] + c["error"]
        assert c["shared"] <= 227 * 1024
