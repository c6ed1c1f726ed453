"""Lightning: Trainer with a module by torch.compile or .compile(), and Fabric."""

import tempfile
from collections.abc import Callable
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flashover


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = self(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(prepare: Callable[[Model], Model]) -> float:
    data = DataLoader(TensorDataset(torch.arange(64.0).reshape(16, 4) / 64), batch_size=4)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=folder,
        )  # fmt: skip
        trainer.fit(prepare(Model()), data)
        trainer.save_checkpoint(f"{folder}/one.ckpt")
        keys = torch.load(f"{folder}/one.ckpt", weights_only=True)["state_dict"]
    assert "net.0.weight" in keys
    return trainer.callback_metrics["loss"].item()


def by_method(model: Model) -> Model:
    model.compile()
    return model


if __name__ == "__main__":
    want = fit(lambda model: model)
    flashover.install()
    for number, prepare in enumerate((torch.compile, by_method), 1):
        assert abs(fit(prepare) - want) < 1e-5
        assert flashover.compile_stats()["graphs"] == number
    fabric = lightning.Fabric(accelerator="cpu")
    model, x = Model(), torch.randn(2, 4)
    assert torch.allclose(fabric.setup(torch.compile(model.net))(x), model.net(x), atol=1e-6)
    assert flashover.compile_stats()["graphs"] == 3
    assert flashover.compile_stats()["eager_calls"] == 0
