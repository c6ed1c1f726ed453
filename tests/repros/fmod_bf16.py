"""fmod and remainder of all kinds of numbers, denormal ones too, are what fp64 says (eager's f32 kernels give NaN for
denormal divisors) or what eager says."""

import torch

import flashover

SPECIAL = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-30, 1e30, 1e-38, 3e38, 1.0, -1.0, 2.0, 9.0, -9.0]


def same(a, b):
    return (a == b) | (a.isnan() & b.isnan())


for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
    torch.manual_seed(0)
    v = torch.cat([torch.randn(60) * 5, torch.tensor(SPECIAL)]).to(dtype)
    a, b = (t.contiguous() for t in torch.meshgrid(v, v, indexing="ij"))
    for op in (torch.fmod, torch.remainder):
        wanted, got = op(a, b), flashover.compile(lambda a, b, op=op: op(a, b))(a, b)
        right = op(a.double(), b.double()).to(dtype)
        bad = ~(same(wanted, got) | same(right, got))
        where = bad.nonzero()[:3].tolist()
        assert not bad.any(), (dtype, op, [(a[i, j], b[i, j], wanted[i, j], got[i, j], right[i, j]) for i, j in where])

# Denormal results of any kernel.
x = torch.linspace(-1, 1, 999).to(torch.bfloat16) * 1.1e-38
assert torch.equal(flashover.compile(lambda x: x * 0.5 + 0)(x), x * 0.5 + 0)
