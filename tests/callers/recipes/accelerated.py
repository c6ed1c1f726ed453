"""accelerate: dynamo_backend="inductor", also by regions (a compilation a block), with its checkpoints."""

import tempfile
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import TorchDynamoPlugin
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flashover


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def train(**how: Any) -> float:
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True, **how)
    torch.manual_seed(0)
    model = Blocks()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = DataLoader(TensorDataset(torch.arange(64.0).reshape(16, 4) / 64), batch_size=4)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for (x,) in data:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)
        accelerator.load_state(folder)
    assert "blocks.0.0.weight" in accelerator.unwrap_model(model).state_dict()
    return float(loss)


if __name__ == "__main__":
    want = train()
    flashover.install()
    for how in ({"dynamo_backend": "inductor"},
                {"dynamo_plugin": TorchDynamoPlugin(backend="inductor", use_regional_compilation=True)}):  # fmt: skip
        before = flashover.compile_stats()["graphs"]
        got = train(**how)
        assert abs(got - want) < 1e-5, (how, got, want)
        assert flashover.compile_stats()["graphs"] > before, how
    assert flashover.compile_stats()["eager_calls"] == 0
