"""A kernel that takes the compiler too long fails for itself: its function runs eager, others are compiled."""

import warnings

import _compilers
import torch

import flashover

# It takes for ever over what computes a hyperbolic tangent, as g++ does over a kernel of ten thousand operators.
_compilers.use('for a; do source=$a; done\ngrep -q tanh "$source" && exec sleep 300\nexec g++ "$@"')
x = torch.randn(16, 64)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for scale in (2, 3):
        compiled = flashover.compile(lambda x, scale=scale: (x * scale).tanh(), options={"compile_timeout": 4})
        torch.testing.assert_close(compiled(x), (x * scale).tanh())
assert len([w for w in said if "more than" in str(w.message)]) == 1, [str(w.message) for w in said]
before = flashover.compile_stats()["kernels"]
torch.testing.assert_close(flashover.compile(lambda x: x.sin() + 1)(x), x.sin() + 1)
assert flashover.compile_stats()["kernels"] == before + 1
