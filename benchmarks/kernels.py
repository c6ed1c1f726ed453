"""Fused kernels against eager: one row per pattern that models are made of. Times are the best of interleaved runs.

python benchmarks/kernels.py [--threads N] [--only WORD] [--loops WORD]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path[:0] = [str(Path(__file__).parents[1] / "python"), str(Path(__file__).parents[1] / "tests" / "support")]
from trace_tools import Program, trace  # noqa: E402

from flashover import _C  # noqa: E402

Pattern = tuple[str, Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def batch_norm(
    x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    return F.relu(F.batch_norm(x, mean, var.abs() + 1, w, b))


def patterns() -> list[Pattern]:
    out: list[Pattern] = []
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        x, r, w, b = (
            rand(512, 768, dtype=dtype),
            rand(512, 768, dtype=dtype),
            rand(768, dtype=dtype),
            rand(768, dtype=dtype),
        )
        wide, bias = rand(256, 3072, dtype=dtype), rand(3072, dtype=dtype)
        out += [
            (f"bias + gelu {name}", lambda x, b: F.gelu(x + b), (wide, bias)),
            (f"bias + gelu tanh {name}", lambda x, b: F.gelu(x + b, approximate="tanh"), (wide, bias)),
            (f"residual + layer_norm {name}", lambda x, r, w, b: F.layer_norm(x + r, (768,), w, b), (x, r, w, b)),
            (f"rms_norm {name}", rms_norm, (x, w)),
            (f"silu * up {name}", lambda g, u: F.silu(g) * u, (wide, rand(256, 3072, dtype=dtype))),
            (f"softmax 3072x512 {name}", lambda x: torch.softmax(x, -1), (rand(3072, 512, dtype=dtype),)),
        ]
    image = rand(2, 64, 112, 112)
    bn = [rand(64) for _ in range(4)]
    ids = torch.randint(0, 30000, (2, 256))
    causal = torch.full((256, 256), float("-inf")).triu(1)
    out += [
        ("softmax 32x50257", lambda x: torch.softmax(x, -1), (rand(32, 50257),)),
        ("softmax 8192x128", lambda x: torch.softmax(x, -1), (rand(8192, 128),)),
        ("log_softmax 64x32000", lambda x: torch.log_softmax(x, -1), (rand(64, 32000),)),
        ("scale + mask + softmax", lambda x, m: torch.softmax(x * 0.125 + m, -1), (rand(2, 12, 256, 256), causal)),
        (
            "cross entropy 64x32000",
            lambda x, t: F.cross_entropy(x, t),
            (rand(64, 32000), torch.randint(0, 32000, (64,))),
        ),
        ("batch_norm + relu", batch_norm, (image, *bn)),
        ("batch_norm + relu channels-last", batch_norm, (image.to(memory_format=torch.channels_last), *bn)),
        ("max_pool 3x3/2", lambda x: F.max_pool2d(x, 3, 2, 1), (image,)),
        (
            "max_pool 3x3/2 channels-last",
            lambda x: F.max_pool2d(x, 3, 2, 1),
            (image.to(memory_format=torch.channels_last),),
        ),
        ("mean 7x7", lambda x: x.mean((2, 3)), (rand(8, 512, 7, 7),)),
        ("group_norm + silu", lambda x: F.silu(F.group_norm(x, 8)), (image,)),
        ("sum rows", lambda x: x.sum(1), (rand(2048, 1024),)),
        ("sum columns", lambda x: x.sum(0), (rand(2048, 1024),)),
        ("sum all", lambda x: x.sum(), (rand(2048, 1024),)),
        ("argmax rows", lambda x: x.argmax(-1), (rand(64, 32000),)),
        ("cumsum rows", lambda x: x.cumsum(-1), (rand(512, 1024),)),
        ("transpose copy", lambda x: x.t().contiguous(), (rand(1024, 768),)),
        ("heads copy", lambda x: x.permute(0, 2, 1, 3).contiguous(), (rand(2, 256, 12, 64),)),
        (
            "nchw -> channels-last, 3 channels",
            lambda x: x.contiguous(memory_format=torch.channels_last),
            (rand(2, 3, 224, 224),),
        ),
        ("cat + pointwise", lambda a, b: torch.cat((a * 2, b + 1), 1), (rand(512, 384), rand(512, 384))),
        (
            "embedding + add + layer_norm",
            lambda t, p, i: F.layer_norm(F.embedding(i, t) + p, (768,)),
            (rand(30000, 768), rand(256, 768), ids),
        ),
        ("rotary", rotary, (rand(2, 12, 256, 64), rand(256, 64), rand(256, 64))),
        (
            "where + clamp + pow",
            lambda a, b: torch.where(a > 0, a.clamp(max=2), b.pow(2)) * 3,
            (rand(512, 768), rand(512, 768)),
        ),
        ("hardswish", F.hardswish, (rand(512, 768),)),
        ("tiny chain 16", lambda x: ((x + 1) * 2).relu(), (rand(16),)),
    ]
    return out


def best(calls: list[Callable[[], object]], seconds: float) -> list[float]:
    times = [float("inf")] * len(calls)
    for call in calls:
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            times[i] = min(times[i], time.perf_counter() - start)
    return [t * 1e6 for t in times]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--loops", action="store_true", help="print the loop kernels of each pattern")
    parser.add_argument("--seconds", type=float, default=0.5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print("| pattern | eager us | own us | ratio | kernels | calls | max error |\n|---|---|---|---|---|---|---|")
    with torch.no_grad():
        for name, fn, inputs in patterns():
            if args.only not in name:
                continue
            traced = trace(Program(fn, inputs))
            compiled = _C.compile_text(traced.text, texts=args.loops)
            given = [*traced.inputs, *traced.constants]
            eager, own = best(
                [lambda fn=fn, inputs=inputs: fn(*inputs), lambda c=compiled, g=given: c.run(g)], args.seconds
            )
            want, got = fn(*inputs), compiled.run(given)[0]
            error = (want.double() - got.double()).abs().max().item()
            print(
                f"| {name} | {eager:.1f} | {own:.1f} | {eager / own:.2f} | {compiled.kernels} | {compiled.extern_calls} | {error:.1e} |",
                flush=True,
            )
            if args.loops:
                print(dict(compiled.texts)["loops"])


if __name__ == "__main__":
    main()
