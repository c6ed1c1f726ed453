"""Fourier transforms of several dims have eager's strides, whatever the operand's (tests/strides tries all)."""

import torch

import flashover

x = torch.randn(5, 6, 7)
for f in (
    lambda x: torch.fft.hfftn(x, dim=(0, -1)),
    torch.fft.rfftn,
    torch.fft.rfft2,
    torch.fft.fftn,
    torch.fft.irfftn,
    lambda x: torch.fft.rfftn(x.permute(2, 0, 1), dim=(0, 2), s=(4, 9), norm="ortho"),
    lambda x: torch.fft.ihfftn(x[:, ::2], dim=(1, 0)),
):
    wanted, got = f(x), flashover.compile(lambda x, f=f: f(x), fullgraph=True)(x)
    assert got.stride() == wanted.stride(), (got.stride(), wanted.stride())
    torch.testing.assert_close(got, wanted)
