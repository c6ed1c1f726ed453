"""What a call costs beside its kernels: guards, binding, results. Writes docs/benchmarks/overhead.md.

The compiled graphs are replaced by a function that answers at once, for torch.compile and for flashover alike, so what is
measured is everything around them. All in one process, turn by turn: warm, the least of many calls; cold, the middle of
some, each after a walk over 64 MB. The guards alone also after smaller walks, and after a step of the model itself, which
is what comes between two checks in real use.
"""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

import flashover
from flashover import _C

ROUNDS, CALLS, COLD_CALLS = 20, 100, 15
WALKS = (4, 16, 64)  # MB


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


def cold_of(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    memory = torch.zeros(16 << 20)
    for _ in range(COLD_CALLS):
        for name, call in calls.items():
            memory.add_(1)
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(all_of) * 1e6 for name, all_of in times.items()}


def their_guards(program: Any, argument: torch.Tensor) -> tuple[float, float]:
    """What torch.compile's own guards take: warm, and by its own profiler, which empties the caches before."""
    from torch._C._dynamo.guards import profile_guard_manager
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    names = zip(program.__code__.co_freevars, program.__closure__ or (), strict=True)
    found = {name: cell.cell_contents for name, cell in names}
    found[program.__code__.co_varnames[0]] = argument
    guards = _debug_get_cache_entry_list(program.__code__)[0].guard_manager
    warm = best_of({"guards": lambda: guards.check(found)})["guards"]
    return warm, statistics.median(profile_guard_manager(guards.root, found, 1) for _ in range(COLD_CALLS))


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


def bert() -> torch.nn.Module:
    return BertModel(
        BertConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=12, num_attention_heads=4, vocab_size=128)
    ).eval()


def calls_llama(layers: int) -> Callable[[torch.Tensor], torch.Tensor]:
    model = llama(layers)
    return lambda ids: model(ids, use_cache=False).logits


def calls_bert() -> Callable[[torch.Tensor], torch.Tensor]:
    model = bert()
    return lambda ids: model(ids).last_hidden_state


def calls(model: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: model(x)


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
    x, image, ids = torch.randn(2, 4), torch.randn(1, 3, 64, 64), torch.randint(0, 128, (1, 16))
    programs: list[tuple[str, Any, torch.Tensor]] = [
        ("a function of one line", tiny, x),
        ("a module with 100 submodules", calls(Many(100).eval()), x),
        ("ResNet-50 (timm)", calls(timm.create_model("resnet50").eval()), image),
        ("HF BERT, 12 layers (tiny sizes)", calls_bert(), ids),
        ("HF Llama, 24 layers (tiny sizes)", calls_llama(24), ids),
    ]
    lines = [
        "# What a call costs beside its kernels",
        "",
        f"`python benchmarks/overhead.py`: Python {platform.python_version()}, torch {torch.__version__}, one process, turn by "
        f"turn, microseconds: warm, the least of {ROUNDS * CALLS} calls; cold, the median of {COLD_CALLS} calls, each after a walk "
        "over 64 MB. The graphs answer at once, so a call is binding, guards and results. `guards` is their check alone: "
        "while no dict of the process changed since the last call / after some dict changed. torch.compile's when cold is "
        "what its own `profile_guard_manager` says.",
        "",
        "| program | guards in all | call, warm: torch.compile | flashover | guards, warm: torch.compile | flashover "
        "| call, cold: torch.compile | flashover | guards, cold: torch.compile | flashover |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    colder = [
        "",
        "The guards alone, in the midst of other work (median of 20): after a walk over memory, after a step of the model "
        "itself, compiled or eager.",
        "",
        "| program | " + " | ".join(f"{size} MB" for size in WALKS) + " | its compiled step | its eager step |",
        "|---|" + "---|" * (len(WALKS) + 2),
    ]
    for name, program, argument in programs:
        torch._dynamo.reset()
        theirs = torch.compile(program, backend=canned)
        ours = flashover.compile(program, backend=canned)
        step = flashover.compile(program)
        for _ in range(3):
            theirs(argument)
            ours(argument)
            step(argument)
        both = {"theirs": lambda: theirs(argument), "ours": lambda: ours(argument)}  # noqa: B023
        warm, cold = best_of(both), cold_of(both)
        changed, quiet = (t / 1e3 for t in ours.time_guards(argument))
        their_warm, their_cold = their_guards(program, argument)
        between: list[Callable[[], Any]] = [partial(torch.zeros(size << 18).add_, 1) for size in WALKS]
        between += [partial(step, argument), partial(program, argument)]
        times = [tuple(t / 1e3 for t in ours.time_guards_after(before, argument)) for before in between]
        cold_changed, cold_quiet = times[len(WALKS) - 1]
        lines.append(
            f"| {name} | {len(ours.entries()[0]['guards'])} | {warm['theirs']:.1f} | {warm['ours']:.1f} "
            f"| {their_warm:.1f} | {quiet:.2f} / {changed:.2f} | {cold['theirs']:.0f} | {cold['ours']:.0f} "
            f"| {their_cold:.0f} | {cold_quiet:.1f} / {cold_changed:.1f} |"
        )
        colder.append(f"| {name} | " + " | ".join(f"{still:.1f} / {all_of:.1f}" for all_of, still in times) + " |")
        print(lines[-1], colder[-1], sep="\n", flush=True)
    lines += colder
    lines += [
        "",
        f"`import flashover` adds {import_seconds():.2f} s to `import torch` (least of 3 processes). Tracing takes "
        f"{trace_microseconds():.1f} us an operator.",
    ]
    print(lines[-1], flush=True)
    path = Path(__file__).parent.parent / "docs" / "overhead.md"
    told = path.read_text().partition("\n`import flashover` adds")[2].partition("\n")[2]  # what people wrote below
    path.write_text("\n".join(lines) + "\n" + told)


if __name__ == "__main__":
    main()
