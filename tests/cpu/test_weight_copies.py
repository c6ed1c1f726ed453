"""The option weight_copies: how much memory copies of weights may take."""

import subprocess
import sys

import pytest
import torch

import flashover


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 32, 3), torch.nn.BatchNorm2d(32)
        self.pointwise, self.linear = torch.nn.Conv2d(32, 64, 1), torch.nn.Linear(64, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.pointwise(torch.relu(self.norm(self.conv(x)))))
        return torch.tanh(self.linear(x.mean((2, 3))))


def packed_weights(model: torch.nn.Module, x: torch.Tensor, **how: object) -> int:
    """How many the plan keeps from call to call."""
    graph = flashover.explain(model, **how)(x).text("split_frozen")
    return sum("frozen" in line and "opaque" in line for line in graph.splitlines())


@pytest.mark.parametrize("dynamic", [False, True])
def test_none_are_made_without_room(dynamic: bool) -> None:
    torch.manual_seed(0)
    model, x = Net().eval(), torch.rand(4, 3, 20, 20)
    with torch.no_grad():
        model.norm.running_mean.uniform_()
        model.norm.running_var.uniform_(0.5, 2)
        assert packed_weights(model, x, dynamic=dynamic) > 0
        assert packed_weights(model, x, dynamic=dynamic, options={"weight_copies": 0}) == 0
        exact = model.double()(x.double())
        model.float()
        for copies in (0, 1, 4096):
            fast = flashover.compile(model, dynamic=dynamic, fullgraph=True, options={"weight_copies": copies})
            torch.testing.assert_close(fast(x).double(), exact, rtol=1e-5, atol=1e-5)


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ValueError, match="weight_copies"):
        flashover.compile(Net(), options={"weight_copies": -1})


PEAK = """
import re
import torch, flashover
from torch import nn

layers = [part for _ in range(8) for part in (nn.Conv2d(512, 512, 3, padding=1), nn.BatchNorm2d(512))]
model = nn.Sequential(*layers).eval()
fast = flashover.compile(model, fullgraph=True)
with torch.no_grad():
    fast(torch.randn(1, 512, 20, 20))
with open("/proc/self/status") as file:
    text = file.read()
peak, after = (int(re.search(rf"{name}:\\s+(\\d+) kB", text)[1]) for name in ("VmHWM", "VmRSS"))
print((peak - after) / 1024)
"""


def test_what_copies_are_made_from_is_let_go_one_by_one() -> None:
    """Weights of 9 MB with norms in them, on the way to their packed copies."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True, timeout=100)
    assert float(done.stdout) < 30
