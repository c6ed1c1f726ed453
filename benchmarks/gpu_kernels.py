"""Generated GPU kernels alone: time and memory rate of single fused programs beside eager. One line a program.

PYTHONPATH=python python benchmarks/gpu_kernels.py [--json FILE] [names...]"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import flashover

BF16, F32 = torch.bfloat16, torch.float32


def r(*sizes: int, dtype: torch.dtype = BF16) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*sizes, device="cuda").to(dtype)


def i(high: int, *sizes: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, high, sizes, device="cuda")


def layer_norm_backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x, g = x.float(), g.float()
    mean, var = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
    rstd = torch.rsqrt(var + 1e-5)
    h = (x - mean) * rstd
    gw = g * w
    dx = rstd * (gw - gw.mean(-1, keepdim=True) - h * (gw * h).mean(-1, keepdim=True))
    return dx.bfloat16(), (g * h).sum(0), g.sum(0)


CASES: dict[str, tuple[Callable[..., Any], list[Callable[[], torch.Tensor]]]] = {
    "pointwise 3 in 1 out 16M": (lambda a, b, c: torch.relu(a * b + c), [r(1 << 24)] * 3),
    "pointwise f32 16M": (lambda a, b: torch.sigmoid(a) * b, [r(1 << 24, dtype=F32)] * 2),
    "bias gelu 16384x3072": (lambda x, b: F.gelu(x + b), [r(16384, 3072), r(3072)]),
    "tanh gelu": (lambda x: F.gelu(x, approximate="tanh"), [r(16384, 3072)]),
    "residual layer_norm 8192x768": (lambda x, y, w, b: F.layer_norm(x + y, (768,), w, b), [r(8192, 768), r(8192, 768), r(768), r(768)]),
    "residual layer_norm 4096x4096": (lambda x, y, w, b: F.layer_norm(x + y, (4096,), w, b), [r(4096, 4096)] * 2 + [r(4096)] * 2),
    "rms_norm 4096x4096": (lambda x, w: x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).bfloat16() * w, [r(4096, 4096), r(4096)]),
    "rms_norm 64x16384": (lambda x, w: F.rms_norm(x, (16384,), w), [r(64, 16384), r(16384)]),
    "softmax 8192x512": (lambda x: x.softmax(-1), [r(8192, 512)]),
    "softmax 2048x50257": (lambda x: x.softmax(-1), [r(2048, 50257)]),
    "softmax 2048x32000": (lambda x: x.softmax(-1), [r(2048, 32000)]),
    "cross_entropy 8192x32000": (lambda x, t: F.cross_entropy(x.float(), t), [r(8192, 32000), i(32000, 8192)]),
    "layer_norm backward 8192x768": (layer_norm_backward, [r(8192, 768), r(8192, 768), r(768)]),
    "batch stats 100352x64": (lambda x: torch.var_mean(x.float(), 0), [r(100352, 64)]),
    "batch stats 100352x512": (lambda x: torch.var_mean(x.float(), 0), [r(100352, 512)]),
    "batch stats 6272x1024": (lambda x: torch.var_mean(x.float(), 0), [r(6272, 1024)]),
    "column sum 16384x3072": (lambda x: x.sum(0, dtype=F32), [r(16384, 3072)]),
    "row sum 16384x3072": (lambda x: x.sum(1, dtype=F32), [r(16384, 3072)]),
    "sum 64M": (lambda x: x.sum(dtype=F32), [r(1 << 26)]),
    "argmax 4096x32000": (lambda x: x.argmax(-1), [r(4096, 32000)]),
    "argmax 64M": (lambda x: x.argmax(), [r(1 << 26)]),
    "cumsum 4096x4096": (lambda x: x.cumsum(-1), [r(4096, 4096, dtype=F32)]),
    "cumsum 4M": (lambda x: x.cumsum(-1), [r(1 << 22, dtype=F32)]),
    "transpose 8192": (lambda x: x.t().contiguous() * 2, [r(8192, 8192)]),
    "nchw to nhwc": (lambda x: (x * 2).contiguous(memory_format=torch.channels_last), [r(64, 256, 56, 56)]),
    "cat last": (lambda a, b: torch.cat([a, b], -1) * 2, [r(16384, 1024), r(16384, 1024)]),
    "embedding 16384x768": (lambda w, t: F.embedding(t, w) * 2, [r(30522, 768), i(30522, 16384)]),
    "index_add 16384x768": (lambda t, g: torch.zeros(30522, 768, device="cuda").index_add(0, t, g), [i(30522, 16384), r(16384, 768, dtype=F32)]),
    "max_pool nhwc": (lambda x: F.max_pool2d(F.relu(x), 3, 2, 1), [lambda: torch.randn(64, 64, 112, 112, device="cuda", dtype=BF16).to(memory_format=torch.channels_last)]),
    "rotary": (lambda q, c, s: q * c + torch.cat([-q[..., 32:], q[..., :32]], -1) * s, [r(12, 16, 1024, 64), r(1024, 64), r(1024, 64)]),
}  # fmt: skip


def nbytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(nbytes(v) for v in value)


def flat(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in flat(v)]


def measure(fn: Callable[..., Any], sets: list[list[torch.Tensor]]) -> float:
    """Microseconds a call over rotating inputs: the host runs ahead of the device."""
    for s in sets[:2]:
        fn(*s)
    torch.cuda.synchronize()
    best = float("inf")
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(300_000)
        begin.record()
        n = 24
        for k in range(n):
            fn(*sets[k % len(sets)])
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) * 1000 / n)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json")
    options = parser.parse_args()
    torch.manual_seed(0)
    out: dict[str, Any] = {}
    print(f"{'program':34} {'us':>8} {'TB/s':>6} {'eager':>8}  kernels  right")
    for name, (fn, make) in CASES.items():
        if options.names and not any(n in name for n in options.names):
            continue
        try:
            one = [m() for m in make]
            copies = max(1, min(6, (400 << 20) // max(1, nbytes(one))))
            sets = [one] + [[t.clone() for t in one] for _ in range(copies)]
            with torch.no_grad():
                before = flashover.compile_stats()["kernels"]
                fast = flashover.compile(fn, fullgraph=True)
                got, want = fast(*one), fn(*one)
                kernels = flashover.compile_stats()["kernels"] - before
                reference = (
                    fn(*(t.double() if t.is_floating_point() else t for t in one)) if nbytes(one) < 1 << 28 else want
                )
                right = all(
                    (a.double() - x.double()).abs().max()
                    <= 2 * (b.double() - x.double()).abs().max() + 2e-2 * x.double().abs().max()
                    for a, b, x in zip(flat(got), flat(want), flat(reference), strict=True)
                )
                us, eager = measure(fast, sets), measure(fn, sets)
            rate = (nbytes(one) + nbytes(got)) / us / 1e6
            out[name] = {"us": us, "eager": eager, "rate": rate, "kernels": kernels, "right": bool(right)}
            print(f"{name:34} {us:8.1f} {rate:6.2f} {eager:8.1f}  {kernels}  {bool(right)}", flush=True)
            del one, sets, got, want, reference
        except Exception as e:
            out[name] = {"error": str(e)[:2000]}
            print(f"{name:34} {type(e).__name__}: {str(e)[:600]}", flush=True)
            if "CUDA error" in str(e):
                break
    if options.json:
        with open(options.json, "w") as f:
            json.dump(out, f, indent=1)


if __name__ == "__main__":
    main()
