"""Trains a small convolutional network on scikit-learn's handwritten digits, compiled and eager, and compares the two.

    python examples/train_digits.py [--epochs 6] [--eager]

The training loop is the one you would write anyway: only the model's call is compiled.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import flashover


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.BatchNorm2d(16)
        self.conv2, self.norm2 = torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.BatchNorm2d(32)
        self.dropout = torch.nn.Dropout(0.1)
        self.head = torch.nn.Linear(32 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.head(self.dropout(x.flatten(1)))


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    return images, torch.tensor(data.target)


def train(compiled: bool, epochs: int, seed: int = 0) -> tuple[float, list[float]]:
    """Accuracy on the held-out images and the mean loss of each epoch."""
    torch.manual_seed(seed)
    images, labels = digits()
    order = torch.randperm(len(images))
    test, rest = order[:297], order[297:]
    net = Net()
    model = flashover.compile(net) if compiled else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    losses = []
    for _ in range(epochs):
        net.train()
        total, batches = 0.0, rest[torch.randperm(len(rest))].split(100)
        for batch in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
        losses.append(total / len(batches))
    net.eval()
    with torch.no_grad():
        right = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
    return right, losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--eager", action="store_true", help="eager only")
    args = parser.parse_args()
    for compiled in (False,) if args.eager else (False, True):
        start = time.perf_counter()
        accuracy, losses = train(compiled, args.epochs)
        name = "compiled" if compiled else "eager"
        seconds, told = time.perf_counter() - start, ", ".join(f"{x:.4f}" for x in losses)
        print(f"{name:9} accuracy {accuracy:.4f}, losses {told}, {seconds:.1f} s")
    print("compile stats:", flashover.compile_stats())


if __name__ == "__main__":
    main()
