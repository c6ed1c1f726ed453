"""Resident memory and time of inference, with copies of weights and without: a process for each row.

    python benchmarks/resident.py [--only bert] [--threads 2] [--repeats 15]

Peak and final resident memory in MB (Linux), milliseconds of a call (median), for eager, the option weight_copies at
its default and at 0, batch 1.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

import flashover

IMAGE = (torch.zeros(1, 3, 224, 224),)
TOKENS = (torch.zeros(1, 128, dtype=torch.long),)
MODELS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[torch.Tensor, ...]]] = {
    "BERT base": (lambda: BertModel(BertConfig()), TOKENS),
    "GPT-2": (lambda: GPT2Model(GPT2Config(use_cache=False)), TOKENS),
    "ResNet-50": (lambda: torchvision.models.resnet50(), IMAGE),
    "VGG-11": (lambda: torchvision.models.vgg11(), IMAGE),
    "MobileNetV3 small": (lambda: torchvision.models.mobilenet_v3_small(), IMAGE),
    "ViT-B/16": (lambda: torchvision.models.vit_b_16(), IMAGE),
}
WAYS: dict[str, dict[str, Any] | None] = {"eager": None, "default": {}, "no copies": {"weight_copies": 0}}


def measured(name: str, way: str, threads: int, repeats: int) -> dict[str, float]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    make, args = MODELS[name]
    model = make().eval()
    how = WAYS[way]
    call = model if how is None else flashover.compile(model, options={**how, "retreat": "never"})
    times = []
    with torch.no_grad():
        for _ in range(3 + repeats):
            begin = time.perf_counter()
            call(*args)
            times.append(1000 * (time.perf_counter() - begin))
    gc.collect()
    with open("/proc/self/statm") as file:
        after = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak": peak / 2**20, "after": after / 2**20, "ms": statistics.median(times[3:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="models that have this in their names")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measured(*json.loads(options.row), options.threads, options.repeats)))
        return
    print(
        "| model | " + " | ".join(f"{way}: peak, after, time" for way in WAYS) + " | peak: default, no copies / eager |"
    )
    print("|---" * (len(WAYS) + 2) + "|")
    for name in MODELS:
        if options.only.lower() not in name.lower():
            continue
        rows = {}
        for way in WAYS:
            command = [sys.executable, __file__, "--row", json.dumps([name, way])]
            command += ["--threads", str(options.threads), "--repeats", str(options.repeats)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
            rows[way] = json.loads(done.stdout.splitlines()[-1])
        cells = [f"{r['peak']:.0f}, {r['after']:.0f} MB, {r['ms']:.1f} ms" for r in rows.values()]
        ratios = [f"{rows[way]['peak'] / rows['eager']['peak']:.2f}x" for way in ("default", "no copies")]
        print(f"| {name} | " + " | ".join(cells) + " | " + ", ".join(ratios) + " |", flush=True)


if __name__ == "__main__":
    main()
