"""One token at a time: a language model's decode step and `generate()`, as parts of the memory's speed.

    python benchmarks/decode.py [--shapes llama-1b,llama-8b] [--caches static,dynamic] [--ways eager,flashover] [--batch 1]

Each row is one way on one model with one cache. `step` is a call of the model for one token with a full prompt behind
it, calls enqueued one behind the other without asking for results; `generate` is the time between two tokens of the
unmodified `generate()` of transformers, its Python included. `of memory` is the time that reading the weights and the
cache takes at the memory's nominal speed over the measured one. `--profile` prints the kernels of a step.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

import flashover

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "vocab_size": 512},
    "llama-1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
                 "num_key_value_heads": 8, "vocab_size": 128256},
    "llama-8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
                 "num_key_value_heads": 8, "vocab_size": 128256},
    "qwen3-8b": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
                 "num_key_value_heads": 8, "vocab_size": 151936},
}  # fmt: skip
WAYS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "torch.compile": torch.compile,
    "torch.compile reduce-overhead": lambda f: torch.compile(f, mode="reduce-overhead"),
    "torch.compile max-autotune": lambda f: torch.compile(f, mode="max-autotune"),
    "flashover": flashover.compile,
    "flashover reduce-overhead": lambda f: flashover.compile(f, mode="reduce-overhead"),
}


def model_of(shape: str, device: str) -> Any:
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            if shape.startswith("qwen3"):
                return hf.Qwen3ForCausalLM(hf.Qwen3Config(**SHAPES[shape], head_dim=128)).eval()
            return hf.LlamaForCausalLM(hf.LlamaConfig(**SHAPES[shape], max_position_embeddings=8192)).eval()
    finally:
        torch.set_default_dtype(before)


def bytes_of(model: Any, batch: int, length: int) -> int:
    """What a step has to read: all weights but the rows of the embedding table that it does not use, and the cache."""
    config = model.config
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    table = model.get_input_embeddings().weight
    if not config.tie_word_embeddings:
        weights -= table.numel() * table.element_size()
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache = 2 * config.num_hidden_layers * config.num_key_value_heads * head * length * batch * 2
    return weights + cache


def cache_of(model: Any, kind: str, length: int) -> Any:
    return hf.StaticCache(config=model.config, max_cache_len=length) if kind == "static" else hf.DynamicCache()


class Clock(hf.StoppingCriteria):  # type: ignore[misc]
    """Asked after each token; never stops."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def time_steps(forward: Any, model: Any, options: argparse.Namespace, kind: str) -> tuple[float, torch.Tensor]:
    """Seconds a step, and its logits."""
    ids = torch.randint(1, 500, (options.batch, options.prompt), device=options.device)
    cache = cache_of(model, kind, options.length)
    model(ids, past_key_values=cache)
    token = ids[:, -1:].clone()
    first = forward(token, past_key_values=cache).logits.clone()
    for _ in range(8):
        forward(token, past_key_values=cache)
    seconds = []
    for _ in range(3):
        sync(options.device)
        start = time.perf_counter()
        for _ in range(options.steps):
            forward(token, past_key_values=cache)
        sync(options.device)
        seconds.append((time.perf_counter() - start) / options.steps)
    if options.profile:
        show_kernels(lambda: forward(token, past_key_values=cache))
    return min(seconds), first


def show_kernels(step: Callable[[], Any]) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as made:
        step()
        step()
        torch.cuda.synchronize()
    rows = sorted(made.key_averages(), key=lambda e: -e.self_device_time_total)
    print(f"  {sum(e.self_device_time_total for e in rows) / 2:.1f} us of kernels a step")
    for e in rows[:24]:
        print(f"  {e.self_device_time_total / 2:8.1f} us {e.count / 2:6.1f} x {e.key[:110]}")


def time_generate(forward: Any, model: Any, options: argparse.Namespace, kind: str) -> float:
    ids = torch.randint(1, 500, (options.batch, options.prompt), device=options.device)
    room = options.length - options.prompt
    settings: dict[str, Any] = {
        "max_new_tokens": min(room, options.tokens), "min_new_tokens": min(room, options.tokens), "do_sample": False,
        "pad_token_id": 0, "disable_compile": True,
    }  # fmt: skip
    if kind == "static":
        settings["cache_implementation"] = "static"
    original = model.forward
    if forward is not model:
        model.forward = forward
    try:
        for _ in range(2):
            clock = Clock()
            model.generate(ids, **settings, stopping_criteria=hf.StoppingCriteriaList([clock]))
    finally:
        model.forward = original
    steps = [b - a for a, b in zip(clock.times, clock.times[1:], strict=False)]
    return statistics.mean(steps[len(steps) // 2 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--shapes", default="llama-1b")
    parser.add_argument("--caches", default="static,dynamic")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--length", type=int, default=1024, help="of the static cache")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--bandwidth", type=float, default=4.8, help="TB/s of the memory")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--without-generate", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        "| model | cache | way | compiling | step | of memory | generate | of memory | differs |\n" + "|---" * 9 + "|"
    )
    for shape in options.shapes.split(","):
        model = model_of(shape, options.device)
        for kind in options.caches.split(","):
            with torch.no_grad():
                want = eager_logits(model, options, kind)
            for way in options.ways.split(","):
                row(options, shape, model, kind, way, want)
        del model


def eager_logits(model: Any, options: argparse.Namespace, kind: str) -> torch.Tensor:
    torch.manual_seed(1)
    ids = torch.randint(1, 500, (options.batch, options.prompt), device=options.device)
    cache = cache_of(model, kind, options.length)
    model(ids, past_key_values=cache)
    return model(ids[:, -1:].clone(), past_key_values=cache).logits.clone()


def row(options: argparse.Namespace, shape: str, model: Any, kind: str, way: str, want: torch.Tensor) -> None:
    torch._dynamo.reset()
    forward = model if way == "eager" else WAYS[way](model.forward)
    bound = bytes_of(model, options.batch, options.length if kind == "static" else options.prompt) / options.bandwidth
    bound /= 1e12
    try:
        with torch.no_grad():
            torch.manual_seed(1)
            start = time.perf_counter()
            step, logits = time_steps(forward, model, options, kind)
            compiling = time.perf_counter() - start - 3 * options.steps * step
            cells = f"{compiling:.1f} s | {step * 1e3:.3f} ms | {bound / step:.0%}"
            if options.without_generate:
                cells += " | | "
            else:
                token = time_generate(forward, model, options, kind)
                cells += f" | {token * 1e3:.3f} ms | {bound / token:.0%}"
    except Exception as error:
        print(f"| {shape} | {kind} | {way} | {type(error).__name__}: {str(error)[:200]!r} |", flush=True)
        return
    differs = f"{float((logits.float() - want.float()).norm() / want.float().norm()):.1e}"
    print(f"| {shape} | {kind} | {way} | {cells} | {differs} |", flush=True)


if __name__ == "__main__":
    main()
