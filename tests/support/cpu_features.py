"""What this machine's CPU has."""

import torch

from flashover import _C

# Products and attention of this dtype run in the package's own kernels.
HAS = {
    torch.float32: not _C.missing_feature("avx512"),
    torch.bfloat16: not _C.missing_feature("avx512 avx512_bf16 amx_bf16"),
}
