"""A slice of a complex tensor, read or written, is part of the graph: Fourier neural operators are compiled whole, in
inference and in training, with eager's results, strides and gradients."""

import torch
from torch import nn

import flashover

torch.manual_seed(0)


class Spectral(nn.Module):
    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.low = nn.Parameter(torch.randn(channels, channels, modes, modes, dtype=torch.cfloat) / channels)
        self.high = nn.Parameter(torch.randn(channels, channels, modes, modes, dtype=torch.cfloat) / channels)

    def forward(self, x):
        m = self.modes
        xf = torch.fft.rfft2(x)
        out = torch.zeros(*xf.shape, dtype=xf.dtype)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", xf[:, :, :m, :m], self.low)
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", xf[:, :, -m:, :m], self.high)
        return torch.fft.irfft2(out, s=x.shape[-2:])


class FNO(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift, self.drop = nn.Conv2d(1, 8, 1), nn.Conv2d(8, 1, 1)
        self.spectral = nn.ModuleList(Spectral(8, 4) for _ in range(2))
        self.direct = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(2))

    def forward(self, x):
        x = self.lift(x)
        for s, d in zip(self.spectral, self.direct, strict=True):
            x = torch.relu(s(x) + d(x))
        return self.drop(x)


model = FNO()
compiled = flashover.compile(model, fullgraph=True)
before = flashover.compile_stats()["graphs"]
for _ in range(2):
    x = torch.randn(2, 1, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    got = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
    for a, b in zip(got, wanted, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
assert flashover.compile_stats()["graphs"] - before >= 2

z = torch.randn(4, 6, 8, dtype=torch.cfloat)


def assigned(at, value):
    def f(z):
        out = torch.zeros(4, 6, 8, dtype=z.dtype)
        out[at] = value(z)
        return out * 2

    return f


for f in (
    lambda z: z[1:3, ::2, 2:] * 1,
    lambda z: z.as_strided((3, 4), (5, 2), 3).clone(),
    lambda z: z.transpose(0, 2)[1:, 2].expand(3, 7, 4) + 0,
    lambda z: torch.cat([z.flip(1).diagonal(0, 1, 2), z[..., 0]], 1),
    assigned((slice(1, 3), slice(None), slice(2, 8, 3)), lambda z: z[1:3, :, :2]),
    assigned((2, slice(None, -1)), lambda z: z[0, 1:]),
    lambda z: z.clone().as_strided_((4, 4), (9, 2), 1).mul_(2j),
):
    a, b = z.clone().requires_grad_(), z.clone().requires_grad_()
    wanted, got = f(a), flashover.compile(lambda z, f=f: f(z), fullgraph=True)(b)
    assert wanted.stride() == got.stride(), (wanted.stride(), got.stride())
    torch.testing.assert_close(got, wanted)
    wanted.abs().sum().backward()
    got.abs().sum().backward()
    torch.testing.assert_close(a.grad, b.grad)
