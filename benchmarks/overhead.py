"""What a call costs beside its kernels: guards, binding, results. Writes docs/overhead.md.

The compiled graphs are replaced by a function that answers at once, for torch.compile and for flashover alike, so what is
measured is everything around them. All in one process, turn by turn, the least of many calls.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import flashover
from flashover import _C

ROUNDS, CALLS = 20, 100


def canned(gm: Any, examples: Any) -> Any:
    outputs = gm(*examples)
    return lambda *args: outputs


def best_of(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    least = dict.fromkeys(calls, 1e9)
    for _ in range(ROUNDS):
        for name, call in calls.items():
            for _ in range(CALLS):
                start = time.perf_counter()
                call()
                least[name] = min(least[name], time.perf_counter() - start)
    return {name: seconds * 1e6 for name, seconds in least.items()}


class Many(torch.nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def llama(layers: int) -> torch.nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            vocab_size=128,
            max_position_embeddings=128,
        )
    ).eval()


def logits_of(model: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda ids: model(ids, use_cache=False).logits


def tiny(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def import_seconds() -> float:
    """What `import flashover` adds to `import torch`, in a process of its own."""
    code = "import torch, time; start = time.perf_counter(); import flashover; print(time.perf_counter() - start)"
    return min(
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    )


def trace_microseconds(operators: int = 1000) -> float:
    """Per operator, the program's own Python with it."""
    x = torch.randn(4, 4)

    def chain() -> list[torch.Tensor]:
        y = x
        for _ in range(operators):
            y = y.mul(y)
        return [y]

    def once() -> float:
        start = time.perf_counter()
        with torch.no_grad():
            _C.trace_function(chain, [("x", "user", x)])
        return time.perf_counter() - start

    return min(once() for _ in range(5)) / operators * 1e6


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, ids = torch.randn(2, 4), torch.randint(0, 128, (1, 16))
    programs: list[tuple[str, Any, torch.Tensor]] = [
        ("a function of one line", tiny, x),
        ("a module with 100 submodules", Many(100).eval(), x),
        ("HF Llama, 24 layers (tiny sizes)", logits_of(llama(24)), ids),
    ]
    lines = [
        "# What a call costs beside its kernels",
        "",
        f"`python benchmarks/overhead.py`: Python {platform.python_version()}, torch {torch.__version__}, one process, turn by "
        "turn, the least of 2,000 calls each, microseconds. The graphs answer at once, so this is binding, guards and results; "
        "`guards` is the check alone, without and with a change of any dict of the process since the last call.",
        "",
        "| program | torch.compile | flashover | guards, nothing changed | guards, some dict changed | guards in all |",
        "|---|---|---|---|---|---|",
    ]
    for name, program, argument in programs:
        torch._dynamo.reset()
        theirs = torch.compile(program, backend=canned)
        ours = flashover.compile(program, backend=canned)
        inner = getattr(type(ours), "_flashover_callable", ours)
        for _ in range(3):
            theirs(argument)
            ours(argument)
        least = best_of({"theirs": lambda: theirs(argument), "ours": lambda: ours(argument)})  # noqa: B023
        changed, quiet = inner.time_guards(argument) or (float("nan"), float("nan"))
        lines.append(
            f"| {name} | {least['theirs']:.1f} | {least['ours']:.1f} | {quiet / 1e3:.2f} | {changed / 1e3:.2f} "
            f"| {len(inner.entries()[0]['guards'])} |"
        )
        print(lines[-1], flush=True)
    lines += [
        "",
        f"`import flashover` adds {import_seconds():.2f} s to `import torch` (least of 3 processes). Tracing takes "
        f"{trace_microseconds():.1f} us an operator.",
    ]
    print(lines[-1], flush=True)
    path = Path(__file__).parent.parent / "docs" / "overhead.md"
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
