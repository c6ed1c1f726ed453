"""Training: eager, torch.compile and flashover over real models, a whole step (zero_grad, forward, loss, backward,
SGD) in one run: right or wrong, speed, cold compile, memory.

    python benchmarks/training.py                                  # the whole table
    python benchmarks/training.py --models resnet18,bert --precision fp32
    python benchmarks/training.py --jobs 8 --json t.json --markdown docs/benchmarks/training.md

    python benchmarks/training.py --parts right                    # needs no quiet machine

Every row is a process of its own on --threads cores with empty cache folders. Times are medians of interleaved repeats;
cold is the first step less a steady one; memory is the most that a steady step takes (peak.cpp).
"right": gradients against an fp64 run, rmse <= 2 x eager's own + a floor (convolutional networks: the median of five
batches); and the losses of ten steps with SGD and with AdamW follow eager's. Dropout is on: flashover draws eager's random numbers.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import gc
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import models as bench
import torch
import torch.nn.functional as F
import zoo
from torch import nn

Example = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def block(i: int, o: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU(),
        nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width << i for i in range(depth)]
        self.down = nn.ModuleList(block(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in itertools.pairwise(widths))
        self.merge = nn.ModuleList(block(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for i, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for up, merge, skip in zip(reversed(self.up), reversed(self.merge), reversed(kept[:-1]), strict=True):
            x = merge(torch.cat([up(x), skip], 1))
        return self.head(x)


class Dlrm(nn.Module):
    """Dense features through an MLP, sparse ones through embedding bags, all pairs multiplied."""

    def __init__(self, rows: int, width: int, tables: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.ReLU())
        pairs = tables * (tables + 1) // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 4 * width), nn.ReLU(), nn.Linear(4 * width, 1))
        self.register_buffer("pairs", torch.triu_indices(tables + 1, tables + 1, 1), persistent=False)

    def forward(self, dense: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        features = torch.stack([x, *(bag(i, offsets) for bag, i in zip(self.bags, indices, strict=True))], 1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, products], 1))


class CellLoop(nn.Module):
    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.cell, self.head, self.steps = nn.LSTMCell(width, width), nn.Linear(width, width), steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros_like(x)
        out = []
        for _ in range(self.steps):
            h, c = self.cell(x, (h, c))
            x = self.head(h).tanh()
            out.append(x)
        return torch.stack(out, 1)


class OnlyTensors(nn.Module):
    """What files of models know of results: containers of other classes (transformers' outputs) as a tuple."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        return tuple(bench.tensors(self.model(*args, **kwargs)))


def compiled(which: str, model: nn.Module) -> Any:
    if which == "flashover":  # graphs may break: OPT draws a number a layer in training
        import flashover

        return flashover.compile(model)
    return torch.compile(model)


def make_unet(small: bool) -> Example:
    return UNet(8 if small else 32, 3 if small else 4), (torch.randn(2, 3, *[32 if small else 96] * 2),), {}


def make_dlrm(small: bool) -> Example:
    rows, batch, tables = (50, 8, 3) if small else (20000, 256, 8)
    indices = torch.randint(0, rows, (tables, batch * 4))
    dense = torch.randn(batch, 13)
    return Dlrm(rows, 8 if small else 64, tables), (dense, indices, torch.arange(0, batch * 4, 4)), {}


def make_cell(small: bool) -> Example:
    width, steps = (16, 4) if small else (256, 24)
    return CellLoop(width, steps), (torch.randn(4 if small else 32, width),), {}


def make_albert(small: bool) -> Example:
    full = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048,
            "embedding_size": 128}  # fmt: skip
    tiny = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128,
            "embedding_size": 32, "vocab_size": 500}  # fmt: skip
    return zoo._text("AlbertConfig", "AlbertModel", full, tiny)(small)


OWN: dict[str, Callable[[bool], Example]] = {
    "unet": make_unet,
    "dlrm": make_dlrm,
    "lstm_cell": make_cell,
    "albert": make_albert,
}
ALL = [*zoo.ALL, *OWN]


def make(name: str, small: bool) -> Example:
    torch.manual_seed(0)
    model, args, kwargs = OWN[name](small) if name in OWN else zoo.make(name, small)
    if name in zoo.TIMM + zoo.TORCHVISION:  # batch norm wants more than one image
        args = tuple(torch.randn(2 if small else 4, *a.shape[1:]) for a in args)
    if "use_cache" in getattr(getattr(model, "config", None), "__dict__", {}):
        model.config.use_cache = False
    return model.train(), args, kwargs


class Way:
    """One model, how it is called, and its optimizer."""

    def __init__(self, model: nn.Module, call: Callable[..., Any], optimizer: str, precision: str) -> None:
        make_optimizer: Any = torch.optim.SGD if optimizer == "sgd" else torch.optim.AdamW
        self.model, self.call, self.precision = model, call, precision
        self.optimizer = make_optimizer(model.parameters(), lr=1e-3)

    def loss(self, args: Any, kwargs: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16"):
            out = self.call(*args, **kwargs)
        found = [t for t in bench.tensors(out) if t.requires_grad]
        return sum(((t if t.dtype == torch.double else t.float()) - 0.1).square().mean() for t in found)

    def step(self, args: Any, kwargs: Any) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(args, kwargs)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def gradients(way: Way, args: Any, kwargs: Any) -> list[torch.Tensor]:
    torch.manual_seed(1)
    way.model.zero_grad()
    way.loss(args, kwargs).backward()
    return [p.grad for p in way.model.parameters() if p.grad is not None]


def same_gradients(name: str, precision: str, small: bool) -> dict[str, float]:
    """Errors against fp64; of networks with ReLU the median over five batches: an activation near the kink that falls
    on its other side changes a gradient by a thousandth, in eager or in ours, whichever the batch happens to hit."""
    model, args, kwargs = make(name, small)
    batches = [args]
    if name in zoo.TIMM + zoo.TORCHVISION:
        batches += [tuple(torch.randn_like(a) for a in args) for _ in range(4)]
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    best_way = Way(exact, exact, "sgd", "fp64")
    ways = {"eager": Way(eager, eager, "sgd", precision),
            "flashover": Way(model, compiled("flashover", model), "sgd", precision)}  # fmt: skip
    errors: dict[str, list[float]] = {key: [] for key in ways}
    for batch in batches:
        wide = [bench.to_double(a) for a in batch], {k: bench.to_double(v) for k, v in kwargs.items()}
        best = gradients(best_way, *wide)
        for key, way in ways.items():
            errors[key].append(bench.error(gradients(way, batch, kwargs), best))
    return {key: statistics.median(found) for key, found in errors.items()}


def losses(name: str, precision: str, small: bool, optimizer: str) -> dict[str, list[float]]:
    model, args, kwargs = make(name, small)
    out = {}
    for key in ("exact", "eager", "flashover"):
        mine = copy.deepcopy(model)
        if key == "exact":
            mine = mine.double()
            args, kwargs = tuple(bench.to_double(a) for a in args), {k: bench.to_double(v) for k, v in kwargs.items()}
        way = Way(mine, compiled(key, mine) if key == "flashover" else mine, optimizer, precision)
        if key == "exact":
            way.precision = "fp64"
        torch.manual_seed(2)
        out[key] = [way.step(args, kwargs) for _ in range(10)]
        if key == "exact":
            args, kwargs = make(name, small)[1:]
    return out


def track(found: dict[str, list[float]], precision: str) -> bool:
    """Losses stay as near to fp64's as eager's do, within a factor and a floor."""
    scale = abs(found["exact"][0]) + 1e-6
    ours, theirs = (
        max(abs(a - b) for a, b in zip(found["exact"], found[key], strict=True)) / scale
        for key in ("flashover", "eager")
    )
    return ours <= 2 * theirs + (0.05 if precision == "bf16" else 2e-3)


class Peak:
    """Bytes in large blocks of memory, whoever asked for them (peak.cpp, preloaded)."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(None) if "peak" in os.environ.get("LD_PRELOAD", "") else None
        for name in ("peak_held", "peak_most") if self.library else ():
            getattr(self.library, name).restype = ctypes.c_longlong

    def held(self) -> int:
        return self.library.peak_held() if self.library else 0

    def of(self, call: Callable[[], Any]) -> float:
        """The most that is held during a call."""
        if not self.library:
            return math.nan
        gc.collect()
        self.library.peak_reset()
        call()
        return self.library.peak_most()


def preloaded(environment: dict[str, str], folder: str) -> dict[str, str]:
    """With peak.cpp in every process, if it can be built."""
    library = Path(folder) / "libpeak.so"
    source = Path(__file__).parent / "peak.cpp"
    command = [os.environ.get("CXX", "g++"), "-O2", "-shared", "-fPIC", str(source), "-o", str(library)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return environment
    return environment | {"LD_PRELOAD": str(library)}


def measure(name: str, precision: str, options: argparse.Namespace) -> dict[str, Any]:
    row: dict[str, Any] = {"model": name, "precision": precision}
    if "speed" in options.parts:
        row |= speed(name, precision, options)
    if "right" in options.parts:
        row["error"] = same_gradients(name, precision, options.small)
        row["track"] = {o: track(losses(name, precision, options.small, o), precision) for o in ("sgd", "adamw")}
        row["right"] = row["error"]["flashover"] <= 2 * row["error"]["eager"] + bench.FLOOR[precision] and all(
            row["track"].values()
        )
    return row


def speed(name: str, precision: str, options: argparse.Namespace) -> dict[str, Any]:
    import flashover

    row: dict[str, Any] = {"memory": {}}
    model, args, kwargs = make(name, options.small)
    ways: dict[str, Way] = {}
    peak = Peak()
    once = copy.deepcopy(model)  # what libraries keep for good is nobody's
    Way(once, once, "sgd", precision).step(args, kwargs)
    del once
    for key in ("eager", "flashover", *["inductor"] * options.inductor):
        stats = flashover.compile_stats()
        mine = copy.deepcopy(model)
        ways[key] = way = Way(mine, mine if key == "eager" else compiled(key, mine), "sgd", precision)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            way.step(args, kwargs)
            times.append(time.perf_counter() - start)
        row[f"{key}_cold"] = times[0] - min(times[1:])
        # Above what is there between two steps: gradients, what is kept for the backward, temporaries (of which
        # flashover keeps some).
        way.optimizer.zero_grad()
        gc.collect()
        before = peak.held() - (flashover._C.kept_arena_bytes() if key == "flashover" else 0)
        row["memory"][key] = (peak.of(lambda w=way: w.step(args, kwargs)) - before) / 2**20
        if key == "flashover":
            after = flashover.compile_stats()
            row |= {k: after[k] - stats[k] for k in ("kernels", "extern_calls", "graph_breaks", "graphs")}
    calls = {key: lambda w=way: w.step(args, kwargs) for key, way in ways.items()}
    row["seconds"] = bench.interleaved(calls, options.seconds)
    return row


def run_row(name: str, precision: str, options: argparse.Namespace, cores: list[int]) -> dict[str, Any]:
    arguments = ["--models", name, "--precision", precision, "--row", "--parts", ",".join(options.parts),
                 "--seconds", str(options.seconds),
                 *["--small"] * options.small, *["--no-inductor"] * (not options.inductor)]  # fmt: skip
    with bench.empty_caches(cores) as environment, tempfile.TemporaryDirectory() as folder:
        try:
            row = bench.child(__file__, arguments, preloaded(environment, folder), cores, 900)
        except Exception as failure:
            row = {"model": name, "precision": precision, "failed": f"{type(failure).__name__}: {failure}"[:200]}
    print(row, file=sys.stderr, flush=True)
    return row


def markdown(rows: list[dict[str, Any]], command: str) -> str:
    out = [
        f"`{command}`, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}; one whole training step.",
        "",
        "| model | precision | right | eager ms | torch.compile x | flashover x | vs torch.compile | cold s (t.c / fl)"
        " | MB (eager / t.c / fl) | gradient error (eager / fl) | kernels | externs | breaks |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]

    def ratio(row: dict[str, Any], a: str, b: str) -> float:
        seconds = row.get("seconds", {})
        return seconds.get(a, math.nan) / seconds.get(b, math.nan)

    for r in rows:
        if "failed" in r:
            out.append(f"| {r['model']} | {r['precision']} | FAILED: {r['failed']} |" + " |" * 10)
            continue
        mb, errors = r.get("memory", {}), r.get("error", {})
        right = "yes" if r.get("right") else "NO" if "right" in r else ""
        out.append(
            f"| {r['model']} | {r['precision']} | {right} | {r.get('seconds', {}).get('eager', math.nan) * 1e3:.1f} "
            f"| {ratio(r, 'eager', 'inductor'):.2f} | {ratio(r, 'eager', 'flashover'):.2f} "
            f"| {ratio(r, 'inductor', 'flashover'):.2f} "
            f"| {r.get('inductor_cold', math.nan):.1f} / {r.get('flashover_cold', math.nan):.2f} "
            f"| {' / '.join(f'{mb.get(k, math.nan):.0f}' for k in ('eager', 'inductor', 'flashover'))} "
            f"| {' / '.join(f'{errors.get(k, math.nan):.1e}' for k in ('eager', 'flashover'))} "
            f"| {r.get('kernels', '')} | {r.get('extern_calls', '')} | {r.get('graph_breaks', '')} |"
        )
    good = [r for r in rows if "seconds" in r]
    for precision in sorted({r["precision"] for r in good}):
        part = [r for r in good if r["precision"] == precision]
        means = {
            f"{a}/{b}": bench.geomean([ratio(r, a, b) for r in part])
            for a, b in (("eager", "inductor"), ("eager", "flashover"), ("inductor", "flashover"))
        }
        cold = bench.geomean([r.get("inductor_cold", math.nan) / r["flashover_cold"] for r in part])
        out += [
            "",
            f"Geometric means, {precision} ({len(part)} models): torch.compile {means['eager/inductor']:.2f}x eager, "
            f"flashover {means['eager/flashover']:.2f}x eager, {means['inductor/flashover']:.2f}x torch.compile; cold "
            f"compile {cold:.1f}x faster.",
        ]
    return "\n".join(out) + "\n"


def main() -> int:
    parser = bench.table_parser(__doc__)
    parser.add_argument(
        "--parts", default="speed,right", type=lambda text: text.split(","), help="speed, right or both"
    )
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure(options.models, options.precision, options)))
        return 0
    names = options.models.split(",") if options.models else ALL
    wanted = [(n, p) for p in options.precision.split(",") for n in names]
    rows = bench.run_rows(wanted, options, run_row, lambda done: done)
    text = markdown(rows, "python benchmarks/training.py " + " ".join(sys.argv[1:]))
    if "right" not in options.parts:
        rows = [r | {"right": "failed" not in r} for r in rows]
    return bench.publish(text, rows, options)


if __name__ == "__main__":
    sys.exit(main())
