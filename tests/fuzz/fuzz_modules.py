"""Random small networks in eval mode, compiled against eager: `python tests/fuzz/fuzz_modules.py --seconds 60`.

Layers with frozen parameters (convolution, batch norm, linear, norms, attention, pooling) in random order, residuals,
concatenations, intermediate results that are returned too, inputs in either layout. What libraries and layouts are
chosen for is exercised here: packed weights, folded norms, channels-last, views of results.
"""

from __future__ import annotations

import search_path

import argparse
import random
import sys
import time
import warnings
from collections.abc import Callable

import torch
from fuzz_programs import geometry, sharing
from torch import nn

Layer = tuple[str, Callable[[torch.Tensor], torch.Tensor]]


class Net(nn.Module):
    """A list of steps over a list of values; step i reads some of the values before it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        self.layers = nn.ModuleList()
        self.steps: list[tuple[str, list[int], int]] = []
        self.returned: list[int] = []

    def apply_step(self, step: tuple[str, list[int], int], values: list[torch.Tensor]) -> torch.Tensor:
        kind, reads, layer = step
        x = values[reads[0]]
        match kind:
            case "layer":
                return self.layers[layer](x)
            case "add":
                return x + values[reads[1]]
            case "mul":
                return x * values[reads[1]].sigmoid()
            case "cat":
                return torch.cat([x, values[reads[1]]], 1)
            case "relu":
                return torch.relu(x)
            case "silu":
                return nn.functional.silu(x)
            case "gelu":
                return nn.functional.gelu(x)
            case "hardswish":
                return nn.functional.hardswish(x)
            case "iadd":
                return x.clone().add_(values[reads[1]]).relu_()
            case "gate":
                return x * nn.functional.hardsigmoid(x.mean((-2, -1), keepdim=True)) if x.dim() == 4 else x
            case "tokens":
                return x.flatten(2).transpose(1, 2) if x.dim() == 4 else x
            case "image":
                return x.transpose(1, 2).unflatten(2, (-1, 1)) if x.dim() == 3 else x
            case "half":
                return x.chunk(2, 1)[layer % 2]
            case "shuffle":
                return x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2) if x.shape[1] % 2 == 0 else x
            case "first":
                return x[:, 0] if x.dim() > 2 else x
            case "permute":
                return x.permute(0, 2, 3, 1) if x.dim() == 4 else x
            case "attention":
                q = x.unflatten(-1, (2, -1)).transpose(1, 2) if x.dim() == 3 and x.shape[-1] % 2 == 0 else x[None]
                return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=layer % 2 == 1)
            case "pool":
                return nn.functional.max_pool2d(x, 3, 2, 1) if x.dim() == 4 else x
            case "pad":
                return nn.functional.pad(x, (1, 0, 2, 1))
        raise AssertionError(kind)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [x]
        for step in self.steps:
            values.append(self.apply_step(step, values))
        return tuple(values[i] for i in self.returned)

    def new_layer(self, x: torch.Tensor) -> nn.Module | None:
        r = self.rng
        if x.dim() == 4:
            c = x.shape[1]
            groups = r.choice([1, 1, 1, c])
            out = r.choice([c, c, 2 * c, 8]) if groups == 1 else c
            k = r.choice([1, 3, 3, 5])
            conv = nn.Conv2d(
                c, out, k, stride=r.choice([1, 1, 2]), padding=k // 2, groups=groups, bias=r.random() < 0.5
            )
            return r.choice(
                [
                    conv,
                    conv,
                    nn.Sequential(conv, nn.BatchNorm2d(out)),
                    nn.Sequential(
                        conv, nn.BatchNorm2d(out), r.choice([nn.ReLU(), nn.SiLU(), nn.ReLU6(), nn.Hardswish()])
                    ),
                    nn.BatchNorm2d(c),
                    nn.GroupNorm(r.choice([1, c]), c),
                    nn.AvgPool2d(2, ceil_mode=True),
                    nn.AdaptiveAvgPool2d(2),
                    nn.Upsample(scale_factor=2, mode=r.choice(["nearest", "bilinear"])),
                    nn.ConvTranspose2d(c, 4, 2, stride=2),
                ]
            )
        n = x.shape[-1]
        return r.choice(
            [
                nn.Linear(n, r.choice([n, 2 * n, 16]), bias=r.random() < 0.7),
                nn.LayerNorm(n),
                nn.Sequential(nn.Linear(n, 3 * n), nn.GELU(), nn.Linear(3 * n, n)),
            ]
        )


KINDS = ["layer"] * 10 + [
    "add",
    "add",
    "mul",
    "cat",
    "relu",
    "silu",
    "gelu",
    "hardswish",
    "iadd",
    "gate",
    "tokens",
    "image",
    "half",
    "shuffle",
    "first",
    "permute",
    "attention",
    "pool",
    "pad",
]


def make(seed: int) -> tuple[Net, torch.Tensor]:
    torch.manual_seed(seed)
    net = Net(seed)
    r = net.rng
    if r.random() < 0.7:
        x = torch.randn(r.choice([1, 2, 3]), r.choice([3, 4, 8, 16]), r.choice([5, 8, 16]), r.choice([6, 8, 13]))
        if r.random() < 0.3:
            x = x.to(memory_format=torch.channels_last)
    else:
        x = torch.randn(r.choice([1, 2]), r.choice([4, 9]), r.choice([8, 32]))
    values = [x]
    with torch.no_grad():
        while len(net.steps) < r.randint(3, 14):
            kind, reads = (
                r.choice(KINDS),
                [len(values) - 1 if r.random() < 0.7 else r.randrange(len(values)), r.randrange(len(values))],
            )
            step = (kind, reads, r.randrange(4))
            if kind == "layer":
                layer = net.new_layer(values[reads[0]])
                if layer is None:
                    continue
                net.layers.append(layer)
                step = (kind, reads, len(net.layers) - 1)
            try:
                net.eval()
                made = net.apply_step(step, values)
            except (RuntimeError, ValueError, IndexError):
                if kind == "layer":
                    net.layers = net.layers[:-1]
                continue
            if made.numel() > 200_000 or made.numel() == 0:
                if kind == "layer":
                    net.layers = net.layers[:-1]
                continue
            values.append(made)
            net.steps.append(step)
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
    net.returned = sorted({len(values) - 1} | {r.randrange(1, len(values)) for _ in range(r.choice([0, 1, 3]))})
    return net.eval().requires_grad_(False), x


def run_one(seed: int, compile_fn: Callable[..., Callable[..., tuple[torch.Tensor, ...]]]) -> str:
    net, x = make(seed)
    autocast = seed % 5 == 4
    with torch.no_grad(), warnings.catch_warnings(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        warnings.filterwarnings("error", message="flashover: ")
        eager = net(x)
        with torch.autocast("cpu", enabled=False):
            exact = make(seed)[0].double()(x.double())
        got = compile_fn(net)(x)
        again = compile_fn(net)(x)
    for i, (g, e, d) in enumerate(zip(got, eager, exact, strict=True)):
        if geometry(g) != geometry(e):
            return f"output {i}: geometry {geometry(g)} against {geometry(e)}"
        if sharing(g, list(got)) != sharing(e, list(eager)):
            return f"output {i}: shares memory with {sharing(g, list(got))}, not {sharing(e, list(eager))}"
        ours, theirs = (g.double() - d).abs().max().item(), (e.double() - d).abs().max().item()
        eps = 8e-3 if autocast else 1e-6
        if not ours <= 3 * theirs + 2 * eps * max(1.0, d.abs().max().item()):
            return f"output {i}: error {ours} against eager's {theirs}"
        if not torch.equal(g, again[i]):
            return f"output {i}: the second call differs"
    return ""


def main() -> int:
    import flashover

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--start", "--seed", type=int, default=int(time.time()), help="the first seed")
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    end, done, failed = time.time() + options.seconds, 0, 0
    seed = options.start if options.only is None else options.only
    while True:
        try:
            problem = run_one(seed, flashover.compile)
        except Exception as failure:
            problem = f"{type(failure).__name__}: {failure}"
        done += 1
        if problem or options.only is not None:
            failed += bool(problem)
            net, x = make(seed)
            print(f"seed {seed}: {problem}\n{x.shape} {x.stride()} {net.steps} -> {net.returned}\n{net}", flush=True)
        flashover.reset()
        seed += 1
        if options.only is not None or time.time() > end:
            break
    print(f"{done} networks, {failed} wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
