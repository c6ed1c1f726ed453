"""Products and depthwise convolutions of our own (flashover.panel_linear, depthwise_last) beside torch's.

    [FLASHOVER_ISA=avx2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2] \
        python benchmarks/panels.py [--threads 1,2,4]

fp32, weights known beforehand. Prints microseconds, GFLOP/s and how many times as fast ours is as MKL's and oneDNN's
operators (medians of interleaved calls).
"""

from __future__ import annotations

import argparse

import models as bench
import torch

import flashover  # noqa: F401  (registers the operators)

OPS, ONEDNN = torch.ops.flashover, torch.ops.mkldnn
# rows, inner, columns: transformers, convolutions of one point, few rows
PRODUCTS = [
    (128, 512, 2048), (128, 2048, 512), (197, 384, 1536), (512, 768, 768), (2048, 1024, 1024),
    (12544, 16, 64), (3136, 64, 256), (196, 112, 672), (196, 1024, 256), (49, 960, 160),
    (1, 1280, 1000), (1, 4096, 4096), (4, 1024, 1024),
]  # fmt: skip
# channels, rows and columns of the image, kernel, stride
DEPTHWISE = [
    (32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (240, 28, 5, 1), (672, 14, 5, 1), (960, 7, 5, 1), (96, 56, 7, 1),
    (384, 14, 7, 1),
]  # fmt: skip


def row(name: str, operations: int, calls: dict[str, bench.Call]) -> None:
    seconds = bench.interleaved(calls, 0.5)
    ours = seconds["ours"]
    others = " | ".join(f"{seconds[other] / ours:.2f}x" for other in calls if other != "ours")
    print(f"| {name} | {ours * 1e6:.0f} | {operations / ours / 1e9:.0f} | {others} |", flush=True)


def products(threads: int) -> None:
    print(f"\n{threads} threads\n\n| rows, inner, columns | us | GFLOP/s | MKL | oneDNN |\n|---|---|---|---|---|")
    for rows, inner, columns in PRODUCTS:
        x, w, b = torch.randn(rows, inner), torch.randn(columns, inner), torch.randn(columns)
        packed, other = OPS.pack_panels(w), ONEDNN._reorder_linear_weight(w, rows)
        row(
            f"{rows}, {inner}, {columns}",
            2 * rows * inner * columns,
            {
                "ours": lambda x=x, p=packed, b=b, n=columns: OPS.panel_linear(x, p, b, None, n, "none"),
                "mkl": lambda x=x, w=w, b=b: torch.nn.functional.linear(x, w, b),
                "onednn": lambda x=x, w=other, b=b: ONEDNN._linear_pointwise(x, w, b, "none", [], ""),
            },
        )


def depthwise() -> None:
    print("\n| channels, image, kernel, stride | us | GFLOP/s | oneDNN |\n|---|---|---|---|")
    for channels, size, kernel, stride in DEPTHWISE:
        x = torch.randn(1, channels, size, size).to(memory_format=torch.channels_last)
        w, b = torch.randn(channels, 1, kernel, kernel), torch.randn(channels)
        geometry = [[kernel // 2] * 2, [stride] * 2, [1, 1]]
        other = ONEDNN._reorder_convolution_weight(w, *geometry, channels, list(x.shape))
        packed = OPS.pack_depthwise(w)
        row(
            f"{channels}, {size}, {kernel}, {stride}",
            2 * channels * kernel**2 * (size // stride) ** 2,
            {
                "ours": lambda x=x, p=packed, b=b, k=kernel, s=stride: OPS.depthwise_last(
                    x, p, b, [k, k], [s, s], [k // 2, k // 2], [1, 1], "none"
                ),
                "onednn": lambda x=x, w=other, b=b, g=geometry, c=channels: ONEDNN._convolution_pointwise(
                    x, w, b, *g, c, "none", [], ""
                ),
            },
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1")
    with torch.inference_mode():
        for threads in map(int, parser.parse_args().threads.split(",")):
            torch.set_num_threads(threads)
            products(threads)
            depthwise()


if __name__ == "__main__":
    main()
