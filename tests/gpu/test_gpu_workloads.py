"""Programs whose sizes change, as users have them, on CUDA: right at every size, compiled two or three times."""

from __future__ import annotations

import pytest
import torch
import workloads

pytestmark = pytest.mark.gpu
# Batch 1 has a compile of its own: what attention hands out lies otherwise there.
OF_ONE = {"bert, batch and length", "mixtral, tokens", "mixtral, training"}


@pytest.mark.parametrize("name", workloads.NAMES)
def test_few_compiles_serve_all_sizes(name: str) -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        assert workloads.check(name, "cuda") <= (3 if name in OF_ONE else 2)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
