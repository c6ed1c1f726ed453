"""NumPy inside a compiled function: its operations become kernels."""

from __future__ import annotations

import numpy as np
import torch

import flashover


@flashover.compile(fullgraph=True)
def distances(points: torch.Tensor) -> torch.Tensor:
    p = points.numpy()
    apart = p[:, None, :] - p[None, :, :]
    return torch.from_numpy(np.sqrt((apart**2).sum(-1)))


points = torch.rand(200, 3)
torch.testing.assert_close(distances(points), torch.cdist(points, points), atol=1e-3, rtol=1e-3)
print(distances.explain())
