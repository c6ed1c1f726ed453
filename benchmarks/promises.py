"""What the options strict_numerics and batch_invariant promise, on a sample of architectures (sweep_models.py), CPU.

    python benchmarks/promises.py strict                 # bits of eager's results in fp32, bf16 and fp16
    python benchmarks/promises.py batch                  # bits of a row in batches of 1 to 64, fp32 and bf16
    python benchmarks/promises.py strict --count 40 --only vit --markdown table.md

A process forked for each model, with a time limit. Only what differs, and why, is a line of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch

sys.path.insert(0, str(Path(__file__).parent))
import models as bench
import sweep
import sweep_models

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BATCHES = (1, 2, 3, 8, 17, 64)
MAX_BATCH_PARAMETERS = 40_000_000  # a batch of 64 of larger ones takes too long here


def sample(count: int) -> list[sweep_models.Case]:
    """Spread evenly over each kind: three of eight timm, one of eight torchvision, half transformers."""
    chosen = []
    for kind, share in (("timm", 3 / 8), ("torchvision", 1 / 8), ("transformers", 1 / 2)):
        cases = [c for c in sweep_models.cases() if c[0] == kind]
        wanted = max(1, round(count * share))
        chosen += [cases[i * len(cases) // wanted] for i in range(wanted)]
    return chosen


def bits(t: torch.Tensor) -> torch.Tensor:
    t = torch.view_as_real(t) if t.is_complex() else t
    return t.detach().contiguous().reshape(-1).view(torch.uint8)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def in_dtype(value: Any, dtype: torch.dtype) -> Any:
    return sweep.mapped(value, lambda t: t.to(dtype) if t.is_floating_point() else t)


def differences(got: list[torch.Tensor], want: list[torch.Tensor]) -> str:
    if len(got) != len(want):
        return f"{len(got)} results, not {len(want)}"
    off = [(a, b) for a, b in zip(got, want, strict=True) if not same_bits(a, b)]
    if not off:
        return ""
    worst = max(float((a.double() - b.double()).abs().max()) if a.shape == b.shape else float("inf") for a, b in off)
    return f"{len(off)} of {len(want)} results, by {worst:.1e}"


def strict(model: Any, args: Any, kwargs: Any) -> str:
    import flashover

    want = [t.clone() for t in bench.tensors(model(*args, **kwargs))]
    again = [t.clone() for t in bench.tensors(model(*args, **kwargs))]
    if differences(again, want):
        return "eager differs from itself"
    fast = flashover.compile(model, options={"strict_numerics": True, "retreat": "never"})
    for _ in range(2):
        if text := differences(bench.tensors(fast(*args, **kwargs)), want):
            return text
    return ""


def repeated(value: Any, batch: int) -> Any:
    """Inputs of one sample become `batch` different ones; the first is as it was."""
    generator = torch.Generator().manual_seed(7)

    def more(t: torch.Tensor) -> torch.Tensor:
        if t.dim() == 0 or t.shape[0] != 1:
            return t
        all_of = t.repeat(batch, *[1] * (t.dim() - 1))
        if t.is_floating_point() and batch > 1:
            all_of[1:] += 0.1 * torch.randn(all_of[1:].shape, generator=generator).to(t.dtype)
        return all_of

    return sweep.mapped(value, more)


def batch(model: Any, args: Any, kwargs: Any) -> str:
    import flashover

    if sum(p.numel() for p in model.parameters()) > MAX_BATCH_PARAMETERS:
        return "skipped: too large"
    most = repeated((args, kwargs), BATCHES[-1])
    of_one = bench.tensors(model(*args, **kwargs))
    rows = [i for i, t in enumerate(of_one) if t.dim() > 0 and t.shape[0] == 1]
    if not rows or any(t.shape[0] != 1 for t in bench.tensors((args, kwargs)) if t.dim()):
        return "skipped: no batch"
    fast = flashover.compile(model, options={"batch_invariant": True, "retreat": "never"})
    want: list[torch.Tensor] | None = None
    for count in reversed(BATCHES):
        own_args, own_kwargs = sweep.mapped(
            most, lambda t, n=count: t[:n] if t.dim() and t.shape[0] == BATCHES[-1] else t
        )
        results = bench.tensors(fast(*own_args, **own_kwargs))
        got = [results[i].clone() for i in rows]
        if any(t.shape[0] != count for t in got):
            return "skipped: results without a batch"
        if want is None:
            want = got
        if text := differences(got, [w[:count] for w in want]):
            return f"batch of {count}: {text}{excuse(model, own_args, own_kwargs, most, rows)}"
    return ""


def excuse(model: Any, args: Any, kwargs: Any, most: Any, rows: list[int]) -> str:
    """What is given up, as the certificate has it; or rows that know of each other in eager, too."""
    import flashover

    few, many = (bench.tensors(model(*a, **k)) for a, k in ((args, kwargs), most))
    for i in rows:
        a, b = few[i].double(), many[i][: few[i].shape[0]].double()
        if (a - b).abs().max() > 1e-3 * b.abs().max():
            return "; skipped: eager's rows know of each other"
    flashover.reset()
    found = flashover.explain(model, options={"batch_invariant": True})(*args, **kwargs).numerics
    given_up = {g.operator for g in found.given_up} if found else set()
    return f"; said: {', '.join(sorted(given_up))}" if given_up else ""


def judge(kind: str, name: str, precision: str, check: Callable[..., str]) -> str:
    warnings.simplefilter("ignore")
    try:
        with torch.no_grad():
            model, args, kwargs = sweep_models.make(kind, name)
            model, (args, kwargs) = model.to(DTYPES[precision]), in_dtype((args, kwargs), DTYPES[precision])
            model(*args, **kwargs)
    except Exception as failure:
        return f"skipped: {type(failure).__name__}: {str(failure)[:80]}"
    try:
        with torch.no_grad():
            return check(model, args, kwargs)
    except Exception as failure:
        return f"{type(failure).__name__}: {str(failure)[:120]}"


def child(queue: Any, *what: Any) -> None:
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1), os.dup2(devnull, 2)
    queue.put(judge(*what))


def guarded(limit: float, *what: Any) -> str:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue, *what))
    process.start()
    process.join(limit)
    if process.is_alive():
        process.kill()
        process.join()
        return f"skipped: over {limit:.0f} s"
    return queue.get() if not queue.empty() else f"died, exit status {process.exitcode}"


def verdict(text: str) -> str:
    if "skipped" in text or text.startswith("eager differs"):
        return "skipped"
    return "said" if "; said: " in text else "differ" if text else "equal"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("promise", choices=["strict", "batch"])
    parser.add_argument("--count", type=int, default=40, help="models of the sample")
    parser.add_argument("--only", default="", help="names that contain this, of all there are")
    parser.add_argument("--precisions", default="")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds a model")
    parser.add_argument("--markdown", default="")
    options = parser.parse_args()
    import flashover  # noqa: F401  (before the processes fork)

    check, precisions = (strict, "fp32,bf16,fp16") if options.promise == "strict" else (batch, "fp32,bf16")
    cases = sample(options.count)
    if options.only:
        cases = [c for c in sweep_models.cases() if options.only in c[1]]
    lines = ["| precision | models | equal | differ, and say so | differ | skipped |", "|---|---|---|---|---|---|"]
    for precision in (options.precisions or precisions).split(","):
        counts: Counter[str] = Counter()
        start = time.perf_counter()
        for kind, name in cases:
            text = guarded(options.limit, kind, name, precision, check)
            counts[verdict(text)] += 1
            if text:
                print(f"{precision} {kind} {name}: {text}", flush=True)
        lines.append(
            f"| {precision} | {len(cases)} | {counts['equal']} | {counts['said']} | {counts['differ']} | {counts['skipped']} |"
        )
        print(lines[-1], f"{time.perf_counter() - start:.0f} s", flush=True)
    if options.markdown:
        Path(options.markdown).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
