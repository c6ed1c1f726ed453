"""One compile for every size: eager, torch.compile(dynamic=True), flashover static per size and flashover dynamic.

    python benchmarks/dynamic.py [--device cuda] [--only bert] [--sizes 6] [--threads 8]

For each workload the sizes are drawn once. `compiles` is how many graphs were compiled to serve them all, `all sizes` the
seconds from the first call until every size was served once (compiling included), the ratios are medians of interleaved
repeats after that, as geometric means over the sizes. Static means flashover with dynamic=False, compiled for each size.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import flashover

Call = Callable[[], Any]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            p.view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in self.qkv(self.norm(x)).split(c, -1)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
    return BertModel(config).eval()


def blocks() -> nn.Module:
    return nn.Sequential(*[Block(256, 4) for _ in range(4)])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256))


def tokens(n: int, m: int) -> torch.Tensor:
    return torch.randint(0, 30000, (n, m))


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


LENGTHS = [(8, 37), (3, 128), (1, 200), (5, 61), (16, 24), (2, 311), (7, 93), (4, 256)]
# name -> (model, inputs of (batch, length), with gradients)
WORKLOADS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], torch.Tensor], bool]] = {
    "bert, batch and length": (bert, tokens, False),
    "transformer blocks": (blocks, lambda n, m: floats(n, m, 256), False),
    "mlp, batch": (mlp, lambda n, m: floats(n * m, 256), False),
    "transformer blocks, training": (blocks, lambda n, m: floats(n, m, 256), True),
    "mlp, training": (mlp, lambda n, m: floats(n * m, 256), True),
}


def call_of(f: Callable[..., Any], x: torch.Tensor, training: bool) -> Call:
    def train() -> None:
        f(x).square().mean().backward()

    def infer() -> None:
        with torch.no_grad():
            f(x)

    return train if training else infer


def seconds(call: Call, device: str) -> float:
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def torch_graphs() -> int:
    import torch._dynamo.utils as utils

    return int(utils.counters["stats"].get("unique_graphs", 0))


def geomean(values: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(v) for v in values))


def measure(name: str, options: argparse.Namespace) -> str:
    make, inputs, training = WORKLOADS[name]
    torch.manual_seed(0)
    model = make().to(options.device)
    xs = [inputs(n, m).to(options.device) for n, m in LENGTHS[: options.sizes]]
    torch._dynamo.reset()
    ways: dict[str, Callable[..., Any]] = {
        "eager": model,
        "torch.compile": torch.compile(model, dynamic=True),
        "static": flashover.compile(model, dynamic=False, options={"recompile_limit": 64}),
        "flashover": flashover.compile(model, dynamic=None, options={"remember_sizes": False}),
    }
    first, compiles, calls = {}, {}, {}
    for way, f in ways.items():
        # Tensors of its own: torch.compile leaves marks on those that it is given, which others follow.
        calls[way] = [call_of(f, x.clone(), training) for x in xs]
        before = torch_graphs() if way == "torch.compile" else flashover.compile_stats()["graphs"]
        first[way] = sum(seconds(call, options.device) for call in calls[way])
        compiles[way] = (torch_graphs() if way == "torch.compile" else flashover.compile_stats()["graphs"]) - before
    times: dict[str, list[list[float]]] = {way: [[] for _ in xs] for way in ways}
    for _ in range(options.repeats):
        for i in range(len(xs)):
            for way in ways:
                times[way][i].append(seconds(calls[way][i], options.device))
    medians = {way: [statistics.median(t) for t in times[way]] for way in ways}

    def ratio(slow: str, fast: str) -> str:
        return f"{geomean([a / b for a, b in zip(medians[slow], medians[fast], strict=True)]):.2f}x"

    return (
        f"| {name} | {compiles['flashover']} | {compiles['torch.compile']} | {compiles['static']} | "
        f"{first['flashover']:.1f} s | {first['torch.compile']:.1f} s | {first['static']:.1f} s | "
        f"{ratio('eager', 'flashover')} | {ratio('torch.compile', 'flashover')} | {ratio('static', 'flashover')} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", default="", help="workloads that have this in their names")
    parser.add_argument("--sizes", type=int, default=len(LENGTHS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    print("| workload | compiles | torch.compile's | static's | all sizes | torch.compile | static |", end="")
    print(" to eager | to torch.compile | to static |\n|---|---|---|---|---|---|---|---|---|---|")
    for name in WORKLOADS:
        if options.only in name:
            print(measure(name, options), flush=True)


if __name__ == "__main__":
    main()
