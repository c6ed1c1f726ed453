"""Random numbers inside kernels, the same as eager's on CUDA: without a GPU, against the generator in numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import philox_reference
import pytest
from triton_interpreter import interpret

pytest.importorskip("triton")

HERE = Path(__file__).resolve().parent


def test_known_answers() -> None:
    """The generator's authors give these."""
    zero, ones = np.zeros(1, np.uint64), np.full(1, 0xFFFFFFFF, np.uint64)
    got = [int(x[0]) for x in philox_reference.philox(0, zero, zero)]
    assert got == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert [int(x[0]) for x in philox_reference.philox(0, zero, ones)] != got


@pytest.mark.timeout(300)
def test_programs_draw_what_eager_draws() -> None:
    wrong = {name: what for name, what in interpret(HERE / "triton_random.py").items() if what}
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())


@pytest.mark.timeout(200)
def test_programs_compile_for_sm_90() -> None:
    import torch
    from trace_tools import Program, trace

    from flashover import _C

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = torch.native_dropout(x, 0.1, True)[0]
        return [torch.softmax(y, -1), y.sum(0), torch.randn_like(y) + torch.rand_like(x).view(-1)[0]]

    x = torch.randn(64, 200, dtype=torch.bfloat16)
    sources = _C.triton_program(trace(Program(function, [x])).text, random_threads=270336)["kernels"]
    assert [("uniform_fours(" in s["text"], "normal(" in s["text"]) for s in sources].count((True, False)) == 1
    assert [("uniform_fours(" in s["text"], "normal(" in s["text"]) for s in sources].count((False, True)) == 1
    for source, cubin in zip(sources, _C.triton_build(sources), strict=True):
        assert cubin["bytes"].startswith(b"\x7fELF"), source["text"] + cubin["error"]
