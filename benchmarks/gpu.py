"""Eager, torch.compile and flashover on an NVIDIA GPU, side by side in one run: right or wrong, speed, first-call
times.

    ./x device bench                                         # the whole list, torch.compile included (7-14 s of
    compiling a model)
    ./x device bench --models bert,gpt2 --no-inductor --json out.json --markdown docs/benchmark-gpu.md

Inference under bf16 autocast. Figures are medians of interleaved rounds of one process: a round is a few calls
between two
synchronizations, so CPU and GPU overlap as they do in use. "right" compares with an fp32 eager reference (TF32 off):
the error
must be at most twice eager's plus 1e-2. First-call times: empty kernel caches, process already warm.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]
for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FLASHOVER_CACHE_DIR"):
    os.environ.setdefault(variable, tempfile.mkdtemp(prefix="flashover-bench-"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
from models import error, geomean, tensors  # noqa: E402

Call = Callable[[], Any]
Example = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]
FLOOR = 1e-2


def timm_model(name: str, batch: int) -> Callable[[], Example]:
    def build() -> Example:
        import timm

        return timm.create_model(name, pretrained=False), (torch.randn(batch, 3, 224, 224),), {}

    return build


def text_model(config: str, model: str, batch: int, length: int, **sizes: Any) -> Callable[[], Example]:
    def build() -> Example:
        import transformers

        c = getattr(transformers, config)(**sizes)
        ids = torch.randint(0, c.vocab_size, (batch, length))
        kwargs: dict[str, Any] = {"input_ids": ids}
        if c.is_encoder_decoder:
            kwargs["decoder_input_ids"] = torch.randint(0, c.vocab_size, (batch, length // 2))
        else:
            kwargs["use_cache"] = False
        if config == "BertConfig":
            kwargs.pop("use_cache")
        return getattr(transformers, model)(c), (), kwargs

    return build


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.linear(self.norm(x)))


MODELS: dict[str, Callable[[], Example]] = {
    "blocks50": lambda: (torch.nn.Sequential(*[Block(64) for _ in range(50)]), (torch.randn(32, 64),), {}),
    "resnet18": timm_model("resnet18", 128),
    "resnet50": timm_model("resnet50", 64),
    "vit_base": timm_model("vit_base_patch16_224", 64),
    "convnext_tiny": timm_model("convnext_tiny", 64),
    "efficientnet_b0": timm_model("efficientnet_b0", 128),
    "mixer": timm_model("mixer_b16_224", 64),
    "bert": text_model("BertConfig", "BertForMaskedLM", 16, 512),
    "gpt2": text_model("GPT2Config", "GPT2LMHeadModel", 8, 512),
    "llama": text_model(
        "LlamaConfig", "LlamaForCausalLM", 12, 1024, hidden_size=1024, num_hidden_layers=12, num_attention_heads=16,
        num_key_value_heads=16, intermediate_size=2816, vocab_size=32000,
    ),
    "t5": text_model("T5Config", "T5ForConditionalGeneration", 16, 256, d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8),
    "bert_1": text_model("BertConfig", "BertForMaskedLM", 1, 128),
    "resnet50_1": timm_model("resnet50", 1),
}  # fmt: skip


def to_cuda(x: Any) -> Any:
    return x.cuda() if isinstance(x, torch.Tensor) else x


def compiled(which: str, model: Any) -> Any:
    if which == "inductor":
        return torch.compile(model)
    if which == "inductor_ro":
        return torch.compile(model, mode="reduce-overhead")
    import flashover

    return flashover.compile(model, fullgraph=True, mode="reduce-overhead" if which == "flashover_ro" else None)


def interleaved(calls: dict[str, Call], budget: float) -> dict[str, float]:
    """Median seconds of a call; rounds of about 20 ms, the contestants take turns."""
    count: dict[str, int] = {}
    for key, call in calls.items():
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        count[key] = max(1, min(200, int(0.02 / max(time.perf_counter() - start, 1e-6))))
    times: dict[str, list[float]] = {key: [] for key in calls}
    end = time.perf_counter() + budget
    while time.perf_counter() < end or len(next(iter(times.values()))) < 5:
        for key, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(count[key]):
                call()
            torch.cuda.synchronize()
            times[key].append((time.perf_counter() - start) / count[key])
    return {key: statistics.median(values) for key, values in times.items()}


def gpu_kernels(call: Call) -> list[tuple[str, float, int]]:
    """Kernels of one call: name, microseconds, count; the longest first."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p:
        call()
        torch.cuda.synchronize()
    rows = [(e.key, e.self_device_time_total, e.count) for e in p.key_averages() if e.self_device_time_total > 0]
    return sorted(rows, key=lambda r: -r[1])


def measure(name: str, which: list[str], options: argparse.Namespace) -> dict[str, Any]:
    import flashover

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, args, kwargs = MODELS[name]()
    model = model.cuda().eval()
    args, kwargs = tuple(to_cuda(a) for a in args), {k: to_cuda(v) for k, v in kwargs.items()}
    row: dict[str, Any] = {"model": name, "first": {}, "memory": {}}
    with torch.no_grad():
        reference = [t.clone() for t in tensors(model(*args, **kwargs))]
        with torch.autocast("cuda", torch.bfloat16):
            calls: dict[str, Call] = {"eager": lambda: model(*args, **kwargs)}
            calls["eager"]()
            stats = flashover.compile_stats()
            for key in which:
                fast = compiled(key, model)
                torch.cuda.synchronize()
                start = time.perf_counter()
                try:
                    fast(*args, **kwargs)
                    torch.cuda.synchronize()
                except Exception as failure:
                    row.setdefault("failed", {})[key] = f"{type(failure).__name__}: {failure}"[:300]
                    continue
                row["first"][key] = time.perf_counter() - start
                calls[key] = lambda fast=fast: fast(*args, **kwargs)
            after = flashover.compile_stats()
            row |= {key: after[key] - stats[key] for key in ("kernels", "extern_calls", "graph_breaks", "graphs")}
            row["error"] = {}
            for key, call in calls.items():
                call()
                row["error"][key] = error([t.clone() for t in tensors(call())], reference)
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                call()
                row["memory"][key] = torch.cuda.max_memory_allocated() / 2**20
            row["seconds"] = interleaved(calls, options.seconds)
            if options.profile:
                row["profile"] = {
                    key: gpu_kernels(call) for key, call in calls.items() if key in options.profile.split(",")
                }
    mine = [key for key in row["error"] if key.startswith("flashover")]
    row["right"] = bool(mine) and all(row["error"][k] <= 2 * row["error"]["eager"] + FLOOR for k in mine)
    return row


def overhead(which: list[str], seconds: float) -> dict[str, float]:
    """Whole call of relu(x + 1) * 2 on 16 floats, microseconds."""

    def tiny(x: Any) -> Any:
        return torch.relu(x + 1) * 2

    x = torch.randn(16, device="cuda")
    with torch.no_grad():
        calls: dict[str, Call] = {"eager": lambda: tiny(x)}
        for key in which:
            fast = compiled(key, tiny)
            fast(x)
            calls[key] = lambda fast=fast: fast(x)
        return {k: v * 1e6 for k, v in interleaved(calls, seconds).items()}


def markdown(rows: list[dict[str, Any]], tiny: dict[str, float], command: str) -> str:
    def ratio(row: dict[str, Any], a: str, b: str) -> float:
        return row.get("seconds", {}).get(a, math.nan) / row.get("seconds", {}).get(b, math.nan)

    out = [
        f"`{command}` on {torch.cuda.get_device_name()}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}; bf16 autocast inference.",
        "",
        "| model | right | eager ms | torch.compile x | flashover x | vs torch.compile | first call s (t.c / fl) | MB eager / t.c / fl | kernels | externs |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "seconds" not in row:
            out.append(f"| {row['model']} | FAILED: {row.get('failed')} |" + " |" * 8)
            continue
        memory = " / ".join(f"{row['memory'].get(k, math.nan):.0f}" for k in ("eager", "inductor", "flashover"))
        out.append(
            f"| {row['model']} | {'yes' if row['right'] else 'NO ' + str(row.get('failed', row['error']))} | {row['seconds']['eager'] * 1e3:.2f} "
            f"| {ratio(row, 'eager', 'inductor'):.2f} | {ratio(row, 'eager', 'flashover'):.2f} | {ratio(row, 'inductor', 'flashover'):.2f} "
            f"| {row['first'].get('inductor', math.nan):.1f} / {row['first'].get('flashover', math.nan):.2f} | {memory} "
            f"| {row['kernels']} | {row['extern_calls']} |"
        )
    good = [r for r in rows if "seconds" in r]
    out += ["", f"Geometric means over {len(good)} models: torch.compile {geomean([ratio(r, 'eager', 'inductor') for r in good]):.2f}x eager, "
            f"flashover {geomean([ratio(r, 'eager', 'flashover') for r in good]):.2f}x eager, "
            f"{geomean([ratio(r, 'inductor', 'flashover') for r in good]):.2f}x torch.compile."]  # fmt: skip
    for key in ("inductor_ro", "flashover_ro"):
        part = [r for r in good if key in r["seconds"]]
        if part:
            out.append(
                f"{key}: {geomean([ratio(r, 'eager', key) for r in part]):.2f}x eager: "
                + ", ".join(f"{r['model']} {ratio(r, 'eager', key):.2f}" for r in part)
            )
    out += ["", "Tiny function, whole call: " + ", ".join(f"{k} {v:.1f} us" for k, v in tiny.items()) + "."]
    for row in good:
        for key, kernels in row.get("profile", {}).items():
            out += [
                "",
                f"{row['model']}, {key}: {sum(k[1] for k in kernels):.0f} us in {sum(k[2] for k in kernels)} kernels",
            ]
            out += [f"    {us:8.0f} us {count:4d}x {name[:110]}" for name, us, count in kernels[:14]]
    return "\n".join(out) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", help="comma list of " + ",".join(MODELS))
    parser.add_argument("--no-inductor", dest="inductor", action="store_false", help="leave torch.compile out")
    parser.add_argument("--reduce-overhead", action="store_true", help="also that mode of both")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for the interleaved rounds of a model")
    parser.add_argument(
        "--profile", default="", help="contestants whose GPU kernels are listed, for example flashover,inductor"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    which = ["inductor"] * options.inductor + ["flashover"]
    if options.reduce_overhead:
        which += ["inductor_ro"] * options.inductor + ["flashover_ro"]
    rows: list[dict[str, Any]] = []
    try:
        tiny = overhead(which, options.seconds / 2)
    except Exception as failure:
        print(f"tiny: {failure!r}", file=sys.stderr)
        tiny = {}
    for name in options.models.split(",") if options.models else MODELS:
        try:
            rows.append(measure(name, which, options))
        except Exception as failure:  # a row that fails is a result, and the others must go on
            rows.append({"model": name, "failed": f"{type(failure).__name__}: {failure}"[:300]})
        print({k: v for k, v in rows[-1].items() if k != "profile"}, file=sys.stderr, flush=True)
        torch.cuda.empty_cache()
        if options.json:
            options.json.write_text(json.dumps({"rows": rows, "tiny": tiny}, indent=1))
        if options.markdown:
            options.markdown.write_text(markdown(rows, tiny, "./x device bench " + " ".join(sys.argv[1:])))
    print(markdown(rows, tiny, "./x device bench " + " ".join(sys.argv[1:])))
    return 0 if all(r.get("right") for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
