"""generate() of transformers with its default cache, which grows with each token: eager, torch.compile and flashover.

    python benchmarks/generate.py [--device cuda] [--models llama,gpt2] [--tokens 256] [--sample] [--layers 4]

Each way generates the same number of tokens from the same prompt, twice, greedily or with `--sample` drawn: `first` is
the whole first run with compiling, `then` the median step of the second run (the time between two tokens, generate's
own Python included), which meets the sizes of the first again; `new sizes` is the median step of a run that is longer
than any before, where each step has a size that was never seen. `compiles` counts flashover's frames over all of them.
`ahead from` is the token of the first runs from which flashover has taken less time in total, compiling included, than
eager and than torch.compile; where caches are warm it depends on what FLASHOVER_CACHE_DIR holds.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from typing import Any

import torch
import transformers as hf

import flashover


def models(layers: int, width: int) -> dict[str, Any]:
    heads = max(width // 64, 2)
    plain = {"vocab_size": 8192, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    gated = {**plain, "intermediate_size": 11 * width // 4, "num_key_value_heads": max(heads // 4, 1)}
    sequences = {"vocab_size": 8192, "d_model": width, "num_heads": heads, "d_kv": 64, "d_ff": 4 * width}
    return {
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**gated, max_position_embeddings=8192)),
        "qwen": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**gated, max_position_embeddings=8192)),
        "gpt2": lambda: hf.GPT2LMHeadModel(
            hf.GPT2Config(vocab_size=8192, n_embd=width, n_layer=layers, n_head=heads, n_positions=8192)
        ),
        "t5": lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(**sequences, num_layers=layers, decoder_start_token_id=0)
        ),
        "whisper": lambda: hf.WhisperForConditionalGeneration(
            hf.WhisperConfig(
                vocab_size=8192,
                d_model=width,
                encoder_layers=layers,
                decoder_layers=layers,
                num_mel_bins=80,
                encoder_attention_heads=heads,
                decoder_attention_heads=heads,
                encoder_ffn_dim=4 * width,
                decoder_ffn_dim=4 * width,
                max_target_positions=8192,
                decoder_start_token_id=1,
                bos_token_id=1,
                pad_token_id=0,
                eos_token_id=2,
                suppress_tokens=None,
                begin_suppress_tokens=None,
            )
        ),
    }


class Clock(hf.StoppingCriteria):  # type: ignore[misc]
    """Asked after each token; never stops."""

    def __init__(self, device: str) -> None:
        self.device, self.times = device, [time.perf_counter()]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    def steps(self) -> list[float]:
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


def run(model: Any, prompt: torch.Tensor, tokens: int, sample: bool) -> tuple[torch.Tensor, Clock]:
    torch.manual_seed(0)
    clock = Clock(prompt.device.type)
    settings = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": sample, "pad_token_id": 0}
    with torch.no_grad():
        out = model.generate(prompt, **settings, stopping_criteria=hf.StoppingCriteriaList([clock]))
    return out, clock


def prompt_for(name: str, options: argparse.Namespace) -> torch.Tensor:
    """Token ids of shape (batch, 16); for whisper a spectrogram of (batch, 80 bands, 3000 frames)."""
    if name == "whisper":
        return torch.randn(options.batch, 80, 3000, device=options.device, dtype=getattr(torch, options.dtype))
    return torch.randint(1, 8000, (options.batch, 16), device=options.device)


def ahead_from(ours: Clock, other: Clock) -> str:
    """The first token from which on the one has taken less time in total than the other."""
    behind = [
        i
        for i, (a, b) in enumerate(zip(ours.times, other.times, strict=True))
        if a - ours.times[0] > b - other.times[0]
    ]
    last = behind[-1] if behind else 0
    return "never" if last == len(ours.times) - 1 else str(last + 1)


def measure(name: str, options: argparse.Namespace) -> str:
    torch.manual_seed(0)
    model = models(options.layers, options.width)[name]().eval().to(options.device)
    if options.dtype != "float32":
        model = model.to(getattr(torch, options.dtype))
    ids = prompt_for(name, options)
    want, _ = run(model, ids, options.tokens, options.sample)
    before = flashover.compile_stats()["frames"]
    ways: dict[str, Any] = {"eager": model}
    if not options.without_torch:
        torch._dynamo.reset()
        ways["torch.compile"] = torch.compile(model.forward)
    ways["flashover"] = flashover.compile(model)
    cells = []
    firsts: dict[str, Clock] = {}
    forward = model.forward
    for way, f in ways.items():
        if way == "torch.compile":  # generate() calls the module's forward
            model.forward, f = f, model
        try:
            got, first = run(f, ids, options.tokens, options.sample)
            _, then = run(f, ids, options.tokens, options.sample)
            _, new = run(f, ids, 2 * options.tokens, options.sample)
        except Exception as error:
            if way != "torch.compile":
                raise
            cells.append(f"{type(error).__name__}")
            continue
        finally:
            model.forward = forward
        firsts[way] = first
        total = sum(first.steps())
        same = "" if torch.equal(got, want) else " (other tokens)"
        step, unseen = (statistics.median(x) * 1e3 for x in (then.steps()[2:], new.steps()[options.tokens :]))
        cells.append(f"{total:.2f} s, {step:.3f} ms, {unseen:.3f} ms{same}")
    ours = firsts.pop("flashover")
    cells.append(", ".join(ahead_from(ours, clock) for clock in firsts.values()))
    return f"| {name} | " + " | ".join(cells) + f" | {flashover.compile_stats()['frames'] - before} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--models", default="llama,qwen,gpt2,t5,whisper")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--sample", action="store_true", help="draw tokens instead of taking the likeliest")
    parser.add_argument("--without-torch", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    hf.logging.set_verbosity_error()
    titles = ["eager"] + ["torch.compile"] * (not options.without_torch) + ["flashover"]
    print("(first, then, new sizes)\n\n| model | " + " | ".join(titles) + " | ahead from | compiles |")
    print("|---" * (len(titles) + 3) + "|")
    for name in options.models.split(","):
        print(measure(name, options), flush=True)


if __name__ == "__main__":
    main()
