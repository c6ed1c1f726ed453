"""As torchtitan and torchtune do it: each block by .compile() or torch.compile in its place, the loss by torch.compile,
a loop with accumulated gradients."""

import torch
import torch.nn.functional as F
from torch import compile as compile_by_name  # before install()
from torch import nn

import flashover


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layers = nn.ModuleDict(
            {str(i): nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for i in range(3)}
        )
        self.head = nn.Linear(16, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers.values():
            x = layer(x)
        return self.head(x)


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def train(how: str) -> list[float]:
    torch.manual_seed(0)
    model, loss_function = Transformer(), loss_of
    if how == "torchtitan":
        for name, block in model.layers.named_children():
            model.layers.register_module(name, compile_by_name(block, fullgraph=True))
        loss_function = compile_by_name(loss_of)
    elif how == "torchtune":
        for block in model.layers.values():
            block.compile(backend="inductor")
        loss_function = torch.compile(loss_of, backend="inductor")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(3):
        for _ in range(2):
            tokens = torch.randint(0, 50, (2, 8))
            loss = loss_function(model(tokens), tokens.roll(-1, 1))
            (loss / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    assert "layers.0.linear1.weight" in model.state_dict()
    return losses


if __name__ == "__main__":
    want = train("eager")
    flashover.install()
    for how in ("torchtitan", "torchtune"):
        before = flashover.compile_stats()["graphs"]
        got = train(how)
        assert torch.allclose(torch.tensor(got), torch.tensor(want), atol=1e-4), (how, got, want)
        assert flashover.compile_stats()["graphs"] >= before + 4, flashover.compile_stats()
    assert flashover.compile_stats()["eager_calls"] == flashover.compile_stats()["graph_breaks"] == 0
