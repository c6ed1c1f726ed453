"""Training steps of BERT-like layers with dropout, on a GPU: random operators as eager's, and inside kernels.

python benchmarks/dropout.py [--layers 4] [--batch 16] [--length 512]"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F

import flashover


class Layer(torch.nn.Module):
    def __init__(self, width: int, heads: int, p: float) -> None:
        super().__init__()
        self.heads, self.p = heads, p
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norm1(x + F.dropout(self.out(y), self.p))
        return self.norm2(x + F.dropout(self.down(F.dropout(F.gelu(self.up(x)), self.p)), self.p))


def milliseconds(step: Callable[[], None], seconds: float = 1.5) -> float:
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    best, spent = float("inf"), 0.0
    while spent < seconds * 1e3:
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(5):
            step()
        b.record()
        b.synchronize()
        spent += a.elapsed_time(b)
        best = min(best, a.elapsed_time(b) / 5)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("layers", 4), ("batch", 16), ("length", 512), ("width", 768)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--p", type=float, default=0.1)
    parser.add_argument("--compile", action="store_true", help="torch.compile beside it")
    a = parser.parse_args()
    for batch, length in ((a.batch, a.length), (2, 128)):
        line = []
        x = torch.randn(batch, length, a.width, device="cuda")
        ways: dict[str, Callable[[torch.nn.Module], Callable[..., torch.Tensor]]] = {
            "eager": lambda m: m,
            "operators": lambda m: flashover.compile(m, options={"fused_random": False}),
            "fused": lambda m: flashover.compile(m, options={"fused_random": True}),
            "operators, graphs": lambda m: flashover.compile(m, options={"fused_random": False, "cuda_graphs": True}),
            "fused, graphs": lambda m: flashover.compile(m, options={"fused_random": True, "cuda_graphs": True}),
        }
        if a.compile:
            ways["torch.compile"] = torch.compile
        for name, way in ways.items():
            torch.manual_seed(0)
            flashover.reset()
            layers = [Layer(a.width, a.width // 64, a.p) for _ in range(a.layers)]
            model = torch.nn.Sequential(*layers).cuda()
            call = way(model)

            def step(
                call: Callable[..., torch.Tensor] = call, model: torch.nn.Module = model, x: torch.Tensor = x
            ) -> None:
                with torch.autocast("cuda", torch.bfloat16):
                    loss = call(x).square().mean()
                loss.backward()
                model.zero_grad(set_to_none=True)

            step()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            time = milliseconds(step)
            line.append(f"{name} {time:.3f} ms {torch.cuda.max_memory_allocated() / 2**20:.0f} MB")
        print(f"{a.layers} layers, {batch} x {length} x {a.width}: " + ", ".join(line), flush=True)


if __name__ == "__main__":
    main()
