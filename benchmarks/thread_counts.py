"""CPU speed by number of threads: eager, torch.compile and flashover in one process a row, on as many cores as threads.

    python benchmarks/thread_counts.py [--threads 1,2,4,8,16] [--models resnet50,bert] [--mode infer,train]
        [--precision fp32,bf16] [--batch 1,16] [--no-inductor] [--json rows.json]

Prints a table for each mode, precision and batch: flashover against eager and against torch.compile at each number of
threads (medians of interleaved calls), their geometric means, and how much faster each way is than with one thread.
Rows of few threads run beside each other, on cores of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import models as bench
import torch
import training

MODELS = (
    "resnet50,mobilenetv3_large_100,efficientnet_b0,convnext_tiny,vit_small_patch16_224,swin_tiny_patch4_window7_224,"
    "levit_128s,bert,roberta,gpt2,llama,t5,unet,dlrm,lstm_cell"
)
Row = dict[str, Any]


def of_batch(x: Any, batch: int) -> Any:
    """The first sample, as often as there are samples."""
    return x[:1].expand(batch, *x.shape[1:]).clone() if isinstance(x, torch.Tensor) and x.dim() > 1 else x


def make(name: str, batch: int) -> training.Example:
    model, args, kwargs = training.make("bert" if name == "roberta" else name, small=False)
    if name == "roberta":
        from transformers import RobertaConfig, RobertaModel

        sizes = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048}
        model = RobertaModel(RobertaConfig(**sizes)).train()
    if name != "dlrm":  # its batch is in its bags
        args = tuple(of_batch(a, batch) for a in args)
        kwargs = {key: of_batch(value, batch) for key, value in kwargs.items()}
    return model, args, kwargs


def inference_calls(name: str, row: Row, inductor: bool) -> dict[str, bench.Call]:
    model, args, kwargs = make(name, row["batch"])
    model.eval()
    ways = {"eager": model, "flashover": training.compiled("flashover", model)}
    if inductor:
        ways["inductor"] = training.compiled("inductor", model)
    return {key: lambda way=way: way(*args, **kwargs) for key, way in ways.items()}


def training_calls(name: str, row: Row, inductor: bool) -> dict[str, bench.Call]:
    calls: dict[str, bench.Call] = {}
    for key in ["eager", "flashover", *["inductor"] * inductor]:
        model, args, kwargs = make(name, row["batch"])
        way = training.Way(model, model if key == "eager" else training.compiled(key, model), "sgd", row["precision"])
        calls[key] = lambda way=way, args=args, kwargs=kwargs: way.step(args, kwargs)
    return calls


def measure(row: Row, options: argparse.Namespace) -> Row:
    """One row; in a process of its own."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(row["threads"])
    train = row["mode"] == "train"
    calls = (training_calls if train else inference_calls)(row["model"], row, options.inductor)
    scope = contextlib.nullcontext() if train else bench.precision_scope(row["precision"])
    with scope:
        for call in calls.values():
            call()
            call()
        return row | {"seconds": bench.interleaved(calls, options.seconds)}


def run_row(row: Row, options: argparse.Namespace, cores: list[int], script: str = __file__) -> Row:
    """`script` measures it in a process of its own, given --row."""
    with bench.empty_caches(cores) as environment:
        arguments = [
            "--row",
            json.dumps(row),
            "--seconds",
            str(options.seconds),
            *["--no-inductor"] * (not options.inductor),
        ]
        try:
            row = bench.child(script, arguments, environment, cores, 900)
        except Exception as failure:  # a row that fails is a result, and the others must go on
            row = row | {"failed": f"{type(failure).__name__}: {failure}"[:200]}
    print(row, file=sys.stderr, flush=True)
    return row


def run_rows(rows: list[Row], options: argparse.Namespace) -> list[Row]:
    """Those of one number of threads at a time, each on its own cores."""
    cores = sorted(os.sched_getaffinity(0))
    out: list[Row] = []
    for threads, group in itertools.groupby(sorted(rows, key=lambda r: -r["threads"]), key=lambda r: r["threads"]):
        if threads > len(cores):
            continue
        free: Queue[list[int]] = Queue()
        for at in range(0, len(cores) - threads + 1, threads):
            free.put(cores[at : at + threads])

        def run(row: Row, free: Queue[list[int]] = free) -> Row:
            own = free.get()
            try:
                return run_row(row, options, own)
            finally:
                free.put(own)

        with ThreadPoolExecutor(free.qsize()) as pool:
            out += pool.map(run, group)
        if options.json:  # what is there, should the time run out
            options.json.write_text(json.dumps(out, indent=1))
    return out


def table(rows: list[Row], key: str) -> Iterator[str]:
    """`key` against flashover, by model and threads."""
    counts = sorted({r["threads"] for r in rows})
    yield (
        f"| {key} / flashover | " + " | ".join(f"{n} threads" for n in counts) + " | 1 to most threads: it, flashover |"
    )
    yield "|---" * (len(counts) + 2) + "|"
    found: dict[int, list[float]] = {n: [] for n in counts}
    for name in dict.fromkeys(r["model"] for r in rows):
        own = {r["threads"]: r for r in rows if r["model"] == name}
        cells = []
        for n in counts:
            times = own.get(n, {}).get("seconds", {})
            if key in times:
                found[n].append(times[key] / times["flashover"])
            cells.append(f"{found[n][-1]:.2f}x" if key in times else own.get(n, {}).get("failed", "")[:40])
        ends = [own[n]["seconds"] for n in (counts[0], counts[-1]) if "seconds" in own.get(n, {})]
        scaling = ", ".join(
            f"{ends[0][w] / ends[1][w]:.1f}x" for w in (key, "flashover") if len(ends) == 2 and w in ends[0]
        )
        yield f"| {name} | " + " | ".join(cells) + f" | {scaling} |"
    yield "| geometric mean | " + " | ".join(f"{bench.geomean(v):.2f}x" if v else "" for v in found.values()) + " | |"


def add_row_options(parser: argparse.ArgumentParser) -> None:
    """What run_row hands on, and where the rows go."""
    parser.add_argument("--seconds", type=float, default=4.0, help="of interleaved calls a row")
    parser.add_argument("--no-inductor", dest="inductor", action="store_false", help="leave torch.compile out")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--row", help=argparse.SUPPRESS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2,4,8,16,32", help="those that the machine has are taken")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--mode", default="infer,train")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--batch", default="1,16")
    add_row_options(parser)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure(json.loads(options.row), options)))
        return
    combined = itertools.product(
        *(getattr(options, k).split(",") for k in ("mode", "precision", "batch", "models", "threads"))
    )
    rows = run_rows(
        [
            {
                "mode": mode,
                "precision": precision,
                "batch": max(int(batch), 2) if mode == "train" else int(batch),  # batch norm wants more than one
                "model": model,
                "threads": int(threads),
            }
            for mode, precision, batch, model, threads in combined
        ],
        options,
    )
    for kind, group in itertools.groupby(
        sorted(rows, key=lambda r: (r["mode"], r["precision"], r["batch"])),
        key=lambda r: (r["mode"], r["precision"], r["batch"]),
    ):
        same = list(group)
        print(f"\n{kind[0]}, {kind[1]}, batch {kind[2]}\n")
        for key in ["eager", *["inductor"] * options.inductor]:
            print("\n".join(table(same, key)) + "\n")


if __name__ == "__main__":
    main()
