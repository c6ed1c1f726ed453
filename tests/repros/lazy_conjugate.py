"""A result that is lazily conjugated, as eager's ifft of real numbers is, is the result of compiled code."""
# open: docs/limits.md

import warnings

import torch

import flashover

warnings.simplefilter("ignore")
x = torch.randn(6)
c = flashover.compile(torch.fft.ifft)
got, want = c(x), torch.fft.ifft(x)
torch.testing.assert_close(got, want)
assert got.is_conj() == want.is_conj()
assert c.tallies()["eager_calls"] == 0
