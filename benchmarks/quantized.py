"""A decode step of a Llama with weights of 16, 8 and 4 bits: eager, torch.compile and flashover in one run.

    python benchmarks/quantized.py [--device cuda] [--shape llama-1b] [--bits 16,8,4] [--rows 1] [--ways eager,flashover]

The weights are buffers that a linear unpacks in each call (`x @ (q.to(x.dtype) * scale).T`, two numbers of 4 bits in
a byte), the form that is left of torchao's and quanto's classes once they are captured. A step is all linears of the
decoder for so many tokens, norms and activations between them, without attention. Median of interleaved repeats, us.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import flashover

SHAPES = {"tiny": (512, 1408, 4), "llama-1b": (2048, 8192, 16), "llama-8b": (4096, 14336, 32)}
WAYS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "torch.compile": torch.compile,
    "torch.compile reduce-overhead": lambda f: torch.compile(f, mode="reduce-overhead"),
    "torch.compile max-autotune": lambda f: torch.compile(f, mode="max-autotune"),
    "flashover": flashover.compile,
    "flashover reduce-overhead": lambda f: flashover.compile(f, mode="reduce-overhead"),
    "flashover max-autotune": lambda f: flashover.compile(f, mode="max-autotune"),
}


class Linear(nn.Module):
    def __init__(self, inner: int, columns: int, bits: int) -> None:
        super().__init__()
        self.bits = bits
        if bits == 16:
            self.register_buffer("q", (torch.randn(columns, inner) * inner**-0.5).bfloat16())
        else:
            low, high = (-128, 128) if bits == 8 else (0, 256)
            size = inner if bits == 8 else inner // 2
            self.register_buffer(
                "q", torch.randint(low, high, (columns, size), dtype=torch.int8 if bits == 8 else torch.uint8)
            )
        self.register_buffer(
            "scale", torch.full((columns, 1), inner**-0.5 / (64 if bits == 8 else 4), dtype=torch.bfloat16)
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.bits == 16:
            return x @ self.q.t()
        if self.bits == 8:
            return (x @ self.q.t().to(x.dtype)) * self.scale.view(-1)
        both = torch.stack([self.q & 15, self.q >> 4], -1).flatten(-2).to(x.dtype) - 8
        return x @ (both * self.scale).t()


class Block(nn.Module):
    def __init__(self, width: int, hidden: int, bits: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(width, eps=1e-5) for _ in range(2)])
        self.qkv, self.out = Linear(width, width * 3 // 2, bits), Linear(width, width, bits)
        self.up, self.gate, self.down = (Linear(*size, bits) for size in ((width, hidden),) * 2 + ((hidden, width),))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self.qkv(self.norms[0](x))[:, : x.shape[1]])
        y = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def model_of(shape: str, bits: int, device: str) -> nn.Module:
    width, hidden, layers = SHAPES[shape]
    torch.manual_seed(0)
    with torch.device(device):
        model = nn.Sequential(*(Block(width, hidden, bits) for _ in range(layers)))
    return model.bfloat16().eval().requires_grad_(False)


def step_us(forward: Any, x: Tensor, calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        forward(x)
    if x.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shape", default="tiny", choices=SHAPES)
    parser.add_argument("--bits", default="16,8,4")
    parser.add_argument("--rows", default="1")
    parser.add_argument("--ways", default="eager,torch.compile,flashover")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    ways = options.ways.split(",")
    print("| bits | rows | " + " | ".join(ways) + " |\n|" + "---|" * (len(ways) + 2))
    for rows in map(int, options.rows.split(",")):
        for bits in map(int, options.bits.split(",")):
            model = model_of(options.shape, bits, options.device)
            x = torch.randn(rows, SHAPES[options.shape][0], dtype=torch.bfloat16, device=options.device)
            torch.compiler.reset()
            with torch.no_grad():
                forwards = {way: WAYS[way](model) for way in ways}
                for forward in forwards.values():
                    step_us(forward, x, 4)
                times: dict[str, list[float]] = {way: [] for way in ways}
                for _ in range(options.repeats):
                    for way, forward in forwards.items():
                        times[way].append(step_us(forward, x, 10))
            print(f"| {bits} | {rows} | " + " | ".join(f"{statistics.median(t):.0f}" for t in times.values()) + " |")


if __name__ == "__main__":
    main()
