"""flex_attention: masks and score functions, compiled beside torch.compile and eager.

python benchmarks/flex.py [--device cuda] [--dtype bf16] [--batch 4] [--heads 16] [--length 4096] [--width 128]
                          [--group 1] [--queries 1] [--programs causal,alibi] [--ways flashover,torch.compile,eager]
                          [--backward]

Times are medians of interleaved calls in ms; ratios are torch.compile's time, and eager's, over Flashover's. `flops` are
those of the blocks that the mask leaves. --queries 1 is a step of decoding over a cache of --length keys."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

sys.path[:0] = [str(Path(__file__).parents[1] / "python"), str(Path(__file__).parents[1] / "tests" / "support")]

from flex_programs import PROGRAMS, Program, Sizes, moved_into  # noqa: E402

import flashover  # noqa: E402

Tensor = torch.Tensor
CHOSEN = "full,causal,window,prefix,documents,padding,dilated,neighbourhood,alibi,relative,dense_bias,soft_cap,combined"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def timed(call: Callable[[], Any], device: str) -> float:
    if device == "cpu":
        begin = time.perf_counter()
        call()
        return (time.perf_counter() - begin) * 1e3
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record()
    call()
    b.record()
    b.synchronize()
    return a.elapsed_time(b)


def medians(calls: dict[str, Callable[[], Any]], device: str, seconds: float) -> dict[str, float]:
    """Of calls in turns; what takes long is called less often."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds * len(calls) or min(map(len, times.values())) < 3:
        for name, call in calls.items():
            if sum(times[name]) < seconds * 1e3 or len(times[name]) < 3:
                times[name].append(timed(call, device))
        if all(sum(t) >= seconds * 1e3 and len(t) >= 3 for t in times.values()):
            break
    return {name: statistics.median(t) for name, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="")
    for name in ("batch", "heads", "length", "width", "queries"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--group", type=int, default=1, help="query heads of a head of keys")
    parser.add_argument("--programs", default=CHOSEN)
    parser.add_argument("--ways", default="flashover,torch.compile,eager")
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--backward", action="store_true")
    a = parser.parse_args()
    cpu = a.device == "cpu"
    dtype = DTYPES[a.dtype or ("f32" if cpu else "bf16")]
    batch, heads = a.batch or (1 if cpu else 4), a.heads or (8 if cpu else 16)
    length, width = a.length or (1024 if cpu else 4096), a.width or (64 if cpu else 128)
    s = Sizes(batch, heads, a.queries or length, length)
    print(f"{a.device} {dtype} {s} width {width} group {a.group}{' with backward' if a.backward else ''}", flush=True)
    logs: list[tuple[float, float]] = []
    for name in a.programs.split(","):
        torch.manual_seed(0)
        p = PROGRAMS[name](s)
        with moved_into(p, [t.to(a.device) for t in p.tensors]) as moved:
            times = measure(a, moved, s, dtype, width, logs)
        print(f"{name:14}" + "".join(f"  {way} {t}" for way, t in times.items()), flush=True)
    if logs:
        print("geomean", *(f"{math.exp(sum(x) / len(x)):.2f}" for x in zip(*logs, strict=True)))


def measure(
    a: argparse.Namespace, p: Program, s: Sizes, dtype: torch.dtype, width: int, logs: list[tuple[float, float]]
) -> dict[str, str]:
    mask = None
    if p.mask_mod is not None:
        mask = create_block_mask(p.mask_mod, s.batch, s.heads, s.queries, s.keys, device=a.device)
    q = torch.randn(s.batch, s.heads, s.queries, width, device=a.device, dtype=dtype, requires_grad=a.backward)
    k, v = (
        torch.randn(s.batch, s.heads // a.group, s.keys, width, device=a.device, dtype=dtype, requires_grad=a.backward)
        for _ in range(2)
    )

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, p.score_mod, mask, enable_gqa=a.group > 1)

    made: dict[str, Callable[[Any], Any]] = {
        "flashover": lambda f: flashover.compile(f, fullgraph=True, dynamic=False),
        "torch.compile": lambda f: torch.compile(f, fullgraph=True, dynamic=False),
        "eager": lambda f: f,
    }
    calls: dict[str, Callable[[], Any]] = {}
    errors: dict[str, str] = {}
    grad = torch.randn(s.batch, s.heads, s.queries, width, device=a.device, dtype=dtype)
    for way in a.ways.split(","):
        torch._dynamo.reset()
        c = made[way](f)

        def call(c: Any = c) -> Any:
            out = c(q, k, v)
            if a.backward:
                q.grad = k.grad = v.grad = None
                out.backward(grad)
            return out

        try:
            for _ in range(3):
                call()
        except Exception as e:  # it may lack memory, or the kind of function
            errors[way] = f"- ({type(e).__name__})"
            continue
        calls[way] = call
    if a.device != "cpu":
        torch.cuda.synchronize()
    times = medians(calls, a.device, a.seconds)
    blocks = 1.0 if mask is None else 1 - mask.sparsity() / 100
    flops = 4 * s.batch * s.heads * s.queries * s.keys * width * blocks * (3.5 if a.backward else 1)
    out = {way: f"{t:.3f}" for way, t in times.items()} | errors
    if ours := times.get("flashover"):
        out["TFLOPS"] = f"{flops / ours / 1e9:.2f}"
        ratios = [times[way] / ours for way in ("torch.compile", "eager") if way in times]
        out["ratios"] = " ".join(f"{r:.2f}" for r in ratios)
        if len(ratios) == 2:
            logs.append((math.log(ratios[0]), math.log(ratios[1])))
    return out


if __name__ == "__main__":
    main()
