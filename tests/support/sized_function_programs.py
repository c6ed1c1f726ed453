"""Programs whose sizes go into functions of torch that want them as numbers, or look at them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from size_value_images import Inputs, of

T = torch.Tensor


def linspace_of_dtype(x: T) -> T:
    return torch.linspace(-1, 1, x.shape[0], dtype=x.dtype, device=x.device)[:, None] * x


def linspace_by_names(x: T) -> T:
    return torch.linspace(start=-1, end=1, steps=x.shape[0])[:, None] * x


def arange_of_float_step(x: T) -> T:
    return torch.arange(0, 1, 1 / x.shape[0])[: x.shape[0]] * x[:, 0]


def arange_of_float_start(x: T) -> T:
    return torch.arange(0.5, x.shape[0]) + x[:, 0]


def arange_of_size_step(x: T) -> T:
    return torch.arange(0, x.numel(), x.shape[1]) + torch.arange(0, x.shape[1] * x.shape[0], x.shape[0]).sum()


def windows_of_size(x: T) -> tuple[T, ...]:
    n = x.shape[0]
    return (
        torch.hann_window(n, periodic=False),
        *(torch.hamming_window(n, dtype=x.dtype), torch.blackman_window(n), torch.bartlett_window(n)),
    )


def frequencies(x: T) -> tuple[T, T]:
    return torch.fft.fftfreq(x.shape[0], d=1 / x.shape[0]) * x[:, 0], torch.fft.rfftfreq(x.shape[0], 0.5)


def pairs_below(x: T) -> T:
    i, j = torch.tril_indices(x.shape[0], x.shape[0], offset=-1)
    return (x[i] - x[j]).norm(dim=-1)


def pairs_above(x: T) -> T:
    i = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
    return (x @ x.t())[i[0], i[1]]


def gated(x: T) -> T:
    return F.glu(torch.cat([x, x.flip(0) * 2]), 0) + F.glu(x.repeat(1, 2).t(), 0).t()


def autocorrelated(x: T) -> T:
    n = x.shape[0]
    spectrum = torch.fft.rfft(x, n=2 * n, dim=0)
    return torch.fft.irfft(spectrum * spectrum.conj(), n=2 * n, dim=0)[:n]


def conjugated_twice(x: T) -> T:
    spectrum = torch.fft.rfft(x, dim=0)
    return torch.view_as_real((spectrum.conj() * 2).conj() + spectrum.mH.mT) + spectrum.conj().imag[..., None]


def blocks(x: T) -> tuple[T, T]:
    return torch.kron(x, torch.ones(2, 3)), torch.kron(torch.eye(2, dtype=x.dtype), x[:, 0])


def diagonal_filled(x: T) -> T:
    return (x * 2).fill_diagonal_(1.5) + x.new_zeros(x.shape[0], x.shape[0]).fill_diagonal_(3).sum()


def taken_along(x: T) -> tuple[T, T]:
    return torch.take_along_dim(x, x.argsort(0), 0), torch.take_along_dim(x, x[:, :1].argmax(0, keepdim=True), dim=0)


def slopes(x: T) -> tuple[T, ...]:
    return *torch.gradient(x, spacing=0.5, dim=0), *torch.gradient(x, dim=-1)


def limited(x: T) -> T:
    return x.renorm(2, 0, 1.5) + x.renorm(1, 1, 0.5)


def similarities(x: T) -> tuple[T, ...]:
    return F.cosine_similarity(x, x.flip(0)), F.pairwise_distance(x, x[:1]), torch.tensordot(x, x, dims=([0], [0]))


def global_average(x: T) -> T:
    return F.avg_pool2d(x, x.shape[-2:]).flatten(1)


def global_maximum(x: T) -> T:
    return F.max_pool2d(x, kernel_size=x.size()[2:])


def average_of_columns(x: T) -> T:
    return F.avg_pool2d(x, (x.shape[-2], 1))


def maximum_over_time(x: T) -> T:
    y = x.transpose(1, 2)
    return F.max_pool1d(y, y.shape[-1]).squeeze(-1) + F.avg_pool1d(y, int(y.shape[-1])).squeeze(-1)


def scaled_attention(x: T) -> T:
    q = x.view(2, -1, 2, 8).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q, scale=1 / math.sqrt(x.shape[1]))


def half_windows(x: T) -> T:
    return x.unfold(0, x.shape[0] // 2, 1).mean(-1)


def hops(x: T) -> T:
    return x.unfold(0, 4, x.shape[0] // 4).mean(-1)


def repeated_lists(x: T) -> T:
    return x.new_ones([x.shape[0]] * 2) @ x + torch.zeros((x.shape[0],) * 1)[:, None]


def standardized(x: T) -> tuple[T, ...]:
    return (x - x.mean(0)) / (x.std(0) + 1e-5), x.var(), x.var(1), torch.var_mean(x, 0, correction=0)[0]


def covariances(x: T) -> T:
    return torch.cov(x.t()) + torch.corrcoef(x.t())


def quantiles(x: T) -> tuple[T, ...]:
    q = torch.tensor([0.1, 0.9], dtype=x.dtype)
    return (
        torch.quantile(x, 0.5, dim=0),
        torch.quantile(x, q, dim=1, keepdim=True),
        torch.quantile(x, q, dim=0, interpolation="nearest"),
        x.quantile(0.25, keepdim=True),
        torch.nanquantile(torch.where(x > 1, math.nan, x), 0.5, 0, interpolation="midpoint"),
        torch.quantile(torch.where(x > 2, math.nan, x), 0.3, 0),
    )


def padded(x: T, y: T) -> tuple[T, T]:
    pad = torch.nn.utils.rnn.pad_sequence
    return pad([x, y], batch_first=True), pad([x, y, y[1:]], padding_value=-1.0, padding_side="left")


def spectrum(x: T) -> T:
    y = F.pad(x, (0, 64))
    window = torch.hann_window(24, dtype=x.dtype)
    return (
        torch.stft(y, 32, 8, 24, window, return_complex=True).abs()
        + torch.stft(y[0], 32, 8, normalized=True, return_complex=True).abs()
    )


def signal(x: T) -> tuple[T, T]:
    window = torch.hann_window(24, dtype=x.dtype)
    spectra = torch.stft(F.pad(x, (0, 64)), 32, 8, 24, window, return_complex=True)
    of_one = torch.stft(F.pad(x[0], (0, 64)), 32, 8, normalized=True, return_complex=True)
    return torch.istft(spectra * 0.5, 32, 8, 24, window), torch.istft(of_one, 32, 8, normalized=True)


def solved(x: T) -> tuple[T, T]:
    m = x[:, :1] * x[:, :1].t() + torch.eye(x.shape[0], dtype=x.dtype) * 3
    return torch.linalg.solve(m, x), torch.linalg.cholesky(m) @ x


def eigenvalues(x: T) -> T:
    return torch.linalg.eigvalsh(x @ x.t() + torch.eye(x.shape[0], dtype=x.dtype))


def diagonal_of_square(x: T) -> T:
    return torch.diag(x @ x.t())


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.net = torch.nn.LSTM(16, 8, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: T) -> tuple[T, T]:
        y, (h, _) = self.net(x)
        return y, h


ROWS = of(lambda n: (n, 16))
LONGER = of(lambda n: (n + 9, 16))
IMAGES = of(lambda n: (2, 3, n + 1, n + 4))
TEXT = of(lambda n: (2, n, 16))
WAVES = of(lambda n: (2, n * 16))
TWO = of(lambda n: (n, 16), lambda n: (n + 3, 16))
_TAKES: dict[Inputs, tuple[Callable[..., Any], ...]] = {
    ROWS: (
        *(linspace_of_dtype, linspace_by_names, arange_of_float_step, arange_of_float_start, arange_of_size_step),
        *(windows_of_size, frequencies, pairs_below, pairs_above, repeated_lists, standardized, covariances),
        *(quantiles, solved, eigenvalues, diagonal_of_square, gated, autocorrelated, conjugated_twice, blocks),
        *(diagonal_filled, taken_along, slopes, limited, similarities),
    ),
    LONGER: (half_windows, hops),
    IMAGES: (global_average, global_maximum, average_of_columns),
    TEXT: (maximum_over_time, scaled_attention, Recurrent()),
    WAVES: (spectrum, signal),
    TWO: (padded,),
}
PROGRAMS = {getattr(f, "__name__", type(f).__name__): (f, make) for make, takes in _TAKES.items() for f in takes}
# Their gradients are made for each size (as_strided), or lie in another order than those of one version would.
INFERENCE_ONLY = {"half_windows", "hops", "eigenvalues", "windows_of_size", "maximum_over_time"}
# A triangle of one element is another program, and the gradient of a transform of two, which repeats no frequency.
WAYS = {"pairs_below": 2, "pairs_above": 2, "conjugated_twice": 2}
