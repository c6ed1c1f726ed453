"""What this machine's CPU has, and how its probe's answer is told."""

import re
from pathlib import Path

import torch

import flashover
from flashover import _C

# Products and attention of this dtype run in the package's own kernels.
HAS = {
    torch.float32: not _C.missing_feature("avx512"),
    torch.bfloat16: not _C.missing_feature("avx512 avx512_bf16 amx_bf16"),
}

# What this process may use, be it all that the machine has or what FLASHOVER_ISA leaves of it.
LEVEL = next((level for level in ("avx512", "avx2") if not _C.missing_feature(level)), "scalar")

PROBED = re.compile(r"(?<=\t4)( [01]){8}(?= \d\.\d)")  # as run/probe.h writes it; the last one is split_f32


def split_f32(folder: Path, split: bool) -> dict[str, str]:
    """Options under which f32 products are the AMX unit's (by the bf16x3 split), or are not; none without the unit.

    folder: of the test's own."""
    if not HAS[torch.bfloat16]:
        return {}
    made, told = folder / "made", folder / f"told {split}"
    flashover.compile(lambda x: x + 1, options={"choices_file": str(made)})(torch.ones(2))
    text, found = PROBED.subn(lambda m: m[0][:-1] + str(int(split)), made.read_text())
    assert found == 1
    told.write_text(text)
    return {"choices_file": str(told)}
