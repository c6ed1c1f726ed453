"""CPU inference beside ONNX Runtime and OpenVINO: eager, both of them, torch.compile and flashover in one process a row.

    pip install --target runtimes onnx onnxruntime openvino onnxscript
    PYTHONPATH=runtimes python benchmarks/inference_runtimes.py [--threads 1,2] [--models resnet50,bert] [--batch 1]
        [--no-inductor] [--json rows.json]

fp32, fixed sizes. The models are exported to ONNX by torch.onnx; each runtime gets as many threads as the row says.
Prints how many times faster flashover is than each (medians of interleaved calls). "wrong" says whose results differ
from eager's by more than 1e-3 of their rms.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import models as bench
import thread_counts
import torch
import training

MODELS = (
    "resnet50,mobilenetv3_large_100,efficientnet_b0,convnext_tiny,vit_small_patch16_224,swin_tiny_patch4_window7_224,"
    "levit_128s,bert,gpt2,unet"
)
WAYS = ("eager", "inductor", "onnxruntime", "openvino")
Row = dict[str, Any]


def exported(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], folder: str) -> Path:
    """Of a copy: torch.onnx keeps arrays over the weights' memory, which are other writers for those who pack weights."""
    path = Path(folder) / "model.onnx"
    torch.onnx.export(training.OnlyTensors(copy.deepcopy(model)), args, path, kwargs=kwargs, dynamo=True, verbose=False)
    return path


def onnxruntime_call(path: Path, inputs: list[torch.Tensor], threads: int) -> bench.Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {i.name: t.numpy() for i, t in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: [torch.from_numpy(a) for a in session.run(None, feed)]


def openvino_call(path: Path, inputs: list[torch.Tensor], threads: int) -> bench.Call:
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    core = openvino.Core()
    request = core.compile_model(core.read_model(path), "CPU", settings).create_infer_request()
    arrays = [t.numpy() for t in inputs]

    def call() -> list[torch.Tensor]:
        results = request.infer(arrays, share_inputs=True, share_outputs=True)
        return [torch.from_numpy(a) for a in results.values()]

    return call


def measure(row: Row, options: argparse.Namespace) -> Row:
    warnings.simplefilter("ignore")
    torch.set_num_threads(row["threads"])
    model, args, kwargs = thread_counts.make(row["model"], row["batch"])
    model.eval()
    inputs = [*bench.tensors(list(args)), *bench.tensors(kwargs)]
    calls: dict[str, bench.Call] = {"eager": lambda: model(*args, **kwargs)}
    for key in ["flashover", *["inductor"] * options.inductor]:
        way = training.compiled(key, model)
        calls[key] = lambda way=way: way(*args, **kwargs)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        path = exported(model, args, kwargs, folder)
        calls["onnxruntime"] = onnxruntime_call(path, inputs, row["threads"])
        calls["openvino"] = openvino_call(path, inputs, row["threads"])
        want = bench.tensors(calls["eager"]())
        wrong = [key for key, call in calls.items() if bench.error(bench.tensors(call()), want) > 1e-3]
        return row | {"wrong": wrong, "seconds": bench.interleaved(calls, options.seconds)}


def table(rows: list[Row]) -> str:
    keys = [key for key in WAYS if any(key in r.get("seconds", {}) for r in rows)]
    out = ["| model | flashover ms | " + " | ".join(f"{key} / flashover" for key in keys) + " | wrong |"]
    out.append("|---" * (len(keys) + 3) + "|")
    found: dict[str, list[float]] = {key: [] for key in keys}
    for row in rows:
        times = row.get("seconds", {})
        for key in keys:
            if key in times:
                found[key].append(times[key] / times["flashover"])
        cells = [f"{found[key][-1]:.2f}x" if key in times else row.get("failed", "")[:60] for key in keys]
        mine = f"{times['flashover'] * 1e3:.2f}" if times else ""
        out.append(f"| {row['model']} | {mine} | " + " | ".join(cells) + f" | {', '.join(row.get('wrong', []))} |")
    means = " | ".join(f"{bench.geomean(found[key]):.2f}x" for key in keys)
    return "\n".join([*out, f"| geometric mean | | {means} | |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--batch", type=int, default=1)
    thread_counts.add_row_options(parser)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure(json.loads(options.row), options)))
        return
    everything: list[Row] = []
    for threads in map(int, options.threads.split(",")):
        wanted = [{"model": m, "threads": threads, "batch": options.batch} for m in options.models.split(",")]
        cores = sorted(os.sched_getaffinity(0))[:threads]
        rows = [thread_counts.run_row(row, options, cores, __file__) for row in wanted]
        print(f"\n{threads} threads, batch {options.batch}\n\n{table(rows)}", flush=True)
        everything += rows
        if options.json:
            options.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
