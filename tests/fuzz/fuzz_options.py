"""All options of compile() in pairs, over small programs of every kind: results equal eager's, fp64 is the arbiter.

    python tests/fuzz/fuzz_options.py                              # every row of the covering array over every program
    python tests/fuzz/fuzz_options.py --start 5 --count 2          # these rows
    python tests/fuzz/fuzz_options.py --seconds 300 --start 7000   # of the array with seed 7, 8 ..., in a random order

A row sets every option; the rows together hold every pair of values of every two options. The programs are those of
PROGRAMS: each returns tensors, and may mutate its inputs; those with parameters are compared in their gradients too.
"""

from __future__ import annotations

import search_path

import argparse
import copy
import itertools
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import flashover

Values = dict[str, Any]
FOLDER = tempfile.TemporaryDirectory(prefix="flashover-fuzz-options-")  # a cache of its own; removed at exit


def interesting() -> dict[str, list[Any]]:
    """Option -> the values to pair, from the options table: a new option takes part by itself."""
    least_and_most = flashover._C.option_ranges()
    texts = {
        "cache_dir": ["", FOLDER.name],
        "choices_file": ["", FOLDER.name + "/choices"],
        "compiler": ["", "g++"],
        "disable_passes": ["", "cse,fold,fuse_attention", "linear,convolution,lower_random,split_frozen"],
    }
    found: dict[str, list[Any]] = {}
    for name, (kind, default, _) in flashover.list_options().items():
        if kind == "bool":
            found[name] = [False, True]
        elif kind == "int":
            least, most = least_and_most[name]
            least = max(least, 1) if name == "recompile_limit" else least  # 0 compiles nothing: no pair would show
            found[name] = sorted({least, int(default), min(50, (least + most) // 2), 3 if most > 100 else most, most})
        else:
            found[name] = texts.get(name, [default])
    return found


def allowed(row: Values) -> Values:
    """The row without a promise that another one excludes."""
    return row | {"batch_invariant": False} if row["strict_numerics"] else row


def covering_array(values: dict[str, list[Any]], seed: int = 0) -> Iterator[Values]:
    """Rows that hold every pair of values of every two options: greedy, best of 30 random completions a row."""
    rng = random.Random(seed)
    names = sorted(values)
    missing = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i in range(len(values[a]))
        for j in range(len(values[b]))
    }
    while missing:
        start = dict(sorted(missing)[rng.randrange(len(missing))])
        best: tuple[int, dict[str, int]] = (-1, {})
        for _ in range(30):
            row = {n: start.get(n, rng.randrange(len(values[n]))) for n in names}
            new = sum(p in missing for p in itertools.combinations([(n, row[n]) for n in names], 2))
            best = max(best, (new, row), key=lambda x: x[0])
        missing.difference_update(itertools.combinations([(n, best[1][n]) for n in names], 2))
        yield {n: values[n][i] for n, i in best[1].items()}


# ---- programs: name -> () -> (function or module, inputs). Seeded before each.

Program = Callable[[], tuple[Any, list[torch.Tensor]]]


def r(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(sizes, dtype=dtype)


def ints(*sizes: int, high: int = 5) -> torch.Tensor:
    return torch.randint(0, high, sizes)


def bf16_linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(x, w).relu()


def print_between(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if y.sum() > 0:  # depends on data: a graph break
        return y + 1
    return y - 1


def item_between(x: torch.Tensor) -> torch.Tensor:
    n = int(x.abs().sum().item()) % 3
    return x * (n + 1)


def in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    x[0] = 0
    return x * 2


def through_views(x: torch.Tensor) -> torch.Tensor:
    v = x.view(-1)[::2]
    v.mul_(3)
    return x.sum(0), v


def both_random(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x) + torch.randn(x.shape) * x, torch.bernoulli(torch.full((4,), 0.5))


class Block(nn.Module):
    def __init__(self, dim: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.n1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.n2(x))


def module(*layers: nn.Module, inputs: Callable[[], list[torch.Tensor]], train: bool = True) -> Program:
    def make() -> tuple[Any, list[torch.Tensor]]:
        fresh = nn.Sequential(*copy.deepcopy(layers)).train(train)
        for m in fresh.modules():
            if hasattr(m, "reset_parameters"):
                m.reset_parameters()
        return fresh, inputs()

    return make


def plain(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Program:
    return lambda: (function, [r(*s, dtype=dtype) for s in shapes])


def with_grad(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Program:
    return lambda: (function, [r(*s).requires_grad_() for s in shapes])


PROGRAMS: dict[str, Program] = {
    "pointwise": plain(lambda x, y: (x * y + 1).relu() - y.tanh(), (7, 9), (7, 9)),
    "broadcast": plain(lambda x, y: x * y + x.sum(), (5, 1, 3), (4, 1)),
    "many_functions": plain(lambda x: x.exp().log1p().sqrt() + x.erf() + x.abs().rsqrt(), (33,)),
    "where": plain(lambda x, y: torch.where(x > y, x, y.sigmoid()), (6, 5), (6, 5)),
    "integers": lambda: (lambda a, b: (a // 3 + b % 4, a & b), [ints(9, 4, high=50), ints(9, 4, high=50)]),
    "bools": plain(lambda x: ((x > 0).any(0), (x < 1).all(), (x > 0) ^ (x < 1)), (5, 6)),
    "f64": plain(lambda x: (x.sin() * x).cumsum(0), (13, 3), dtype=torch.float64),
    "bf16": plain(lambda x, y: (x * y + x).softmax(-1), (6, 8), (6, 8), dtype=torch.bfloat16),
    "f16": plain(lambda x: F.silu(x) * 2, (40,), dtype=torch.float16),
    "sum": plain(lambda x: (x.sum(0), x.sum(1), x.sum()), (9, 11)),
    "mean_var": plain(lambda x: (x.mean(0), x.var(1), x.std()), (8, 6)),
    "max_arg": plain(lambda x: (x.max(1)[0], x.argmin(0), x.amax()), (8, 6)),
    "softmax": plain(lambda x: (x.softmax(-1), x.log_softmax(0)), (5, 19)),
    "logsumexp": plain(lambda x: torch.logsumexp(x, 1), (5, 300)),
    "long_sum": plain(lambda x: (x * x).sum(), (1, 70000)),
    "scan": plain(lambda x: (x.cumsum(1), x.cumprod(0)), (4, 7)),
    "layer_norm": plain(lambda x: F.layer_norm(x, (12,)), (6, 12)),
    "group_norm": plain(lambda x: F.group_norm(x, 2), (3, 4, 5)),
    "norm_chain": plain(lambda x, w: F.rms_norm(x, (16,), w) * F.gelu(x), (4, 16), (16,)),
    "attention": plain(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), *[(2, 2, 8, 16)] * 3),
    "attention_causal": plain(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *[(1, 2, 9, 8)] * 3
    ),
    "attention_by_hand": plain(lambda q, k, v: (q @ k.mT / 4).softmax(-1) @ v, *[(2, 8, 16)] * 3),
    "matmul": plain(lambda x, y: x @ y + 1, (9, 16), (16, 5)),
    "bmm": plain(lambda x, y: torch.bmm(x, y).relu(), (3, 4, 5), (3, 5, 6)),
    "linear_gelu": module(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 4), inputs=lambda: [r(6, 12)]),
    "conv_bn_relu": module(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), inputs=lambda: [r(2, 3, 8, 8)]),
    "conv_bn_eval": module(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), inputs=lambda: [r(2, 3, 8, 8)], train=False
    ),
    "conv1d": module(nn.Conv1d(3, 4, 3, stride=2), nn.Tanh(), inputs=lambda: [r(2, 3, 15)]),
    "conv_transpose": module(nn.ConvTranspose2d(3, 4, 2), nn.SiLU(), inputs=lambda: [r(1, 3, 5, 5)]),
    "pools": module(nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 3), inputs=lambda: [r(2, 3, 8, 8)]),
    "block": lambda: (Block(), [r(2, 7, 16)]),
    "embedding": lambda: (nn.Embedding(11, 6), [ints(4, 5, high=11)]),
    "embedding_bag_sum": lambda: (lambda w, i: F.embedding(i, w).sum(1), [r(9, 4).requires_grad_(), ints(3, 5)]),
    "dropout": lambda: (lambda x: F.dropout(x, 0.3) * 2, [r(50)]),
    "dropout_training": lambda: (nn.Sequential(nn.Linear(9, 9), nn.Dropout(0.2), nn.Linear(9, 2)), [r(5, 9)]),
    "random": lambda: (both_random, [r(6, 3)]),
    "views": plain(lambda x: (x.t()[1:].flip(0), x.reshape(-1)[::3], x.unfold(0, 2, 2)), (6, 5)),
    "cat_stack": plain(lambda x, y: (torch.cat([x, y], 1), torch.stack([x, x * 2]), x.repeat(2, 1)), (3, 4), (3, 2)),
    "pad_roll": plain(lambda x: F.pad(x, (1, 2), value=0.5).roll(1, 0) + 1, (4, 5)),
    "slice_scatter": plain(lambda x, y: torch.slice_scatter(x, y, 0, 1, 3), (5, 4), (2, 4)),
    "in_place": plain(in_place, (4, 5), (4, 5)),
    "mutated_views": plain(through_views, (4, 6)),
    "gather": lambda: (lambda x, i: (x.gather(1, i), x[i[0]]), [r(5, 6), ints(5, 3)]),
    "index_put": lambda: (lambda x, i: x.index_put((i,), x[:3] * 2, accumulate=True), [r(5, 4), ints(3)]),
    "scatter_add": lambda: (lambda x, i: torch.zeros(5, 4).scatter_add(0, i, x), [r(5, 4), ints(5, 4)]),
    "sort_topk": plain(lambda x: (x.sort(1)[0], x.topk(2)[0]), (4, 9)),
    "break": plain(print_between, (4, 4)),
    "item": plain(item_between, (3, 3)),
    "autocast": plain(bf16_linear, (6, 16), (5, 16)),
    "complex": plain(lambda x: torch.fft.rfft(x).abs() + 1, (3, 16)),
    "cross_entropy": lambda: (lambda x, t: F.cross_entropy(x, t), [r(7, 5).requires_grad_(), ints(7)]),
    "mse_grad": with_grad(lambda x, y: F.mse_loss(x.tanh(), y * 2), (6, 6), (6, 6)),
    "softmax_grad": with_grad(lambda x, w: (x @ w).softmax(-1).log().sum(), (5, 8), (8, 6)),
    "norm_grad": with_grad(lambda x, w: (F.layer_norm(x, (8,), w) ** 3).mean(), (6, 8), (8,)),
    "index_grad": lambda: (lambda x, i: (x[i] * x.sum(0)).sum(), [r(6, 3).requires_grad_(), ints(4)]),
    "empty": plain(lambda x: (x + 1, x.sum(0)), (0, 3)),
    "scalar": plain(lambda x: (x * 2 + 1, x.item() if x.dim() else x), ()),
    "long_chain": plain(lambda x: [x := (x * 1.01 + 0.1).tanh() if i % 2 else (x - 0.1).relu() for i in range(120)][-1],
                        (5, 7)),
    "wide": plain(lambda x: [x * (i + 1) for i in range(60)], (4, 4)),
}  # fmt: skip
RANDOM = {"dropout", "dropout_training", "random"}


def leaves(x: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(x) if isinstance(t, torch.Tensor)]


def outcome(made: tuple[Any, list[torch.Tensor]], options: Values | None, calls: int) -> list[torch.Tensor]:
    """Results, inputs afterwards, gradients and buffers of so many calls."""
    function, inputs = made
    parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
    leaf_inputs = [x for x in inputs if x.requires_grad]
    call = function if options is None else flashover.compile(function, options=options)
    seen: list[torch.Tensor] = []
    for step in range(calls):
        torch.manual_seed(step)
        results = leaves(call(*inputs))
        seen += [t.detach().clone() for t in results]
        differentiable = [t for t in results if t.requires_grad]
        if differentiable:
            wanted = [p for p in [*parameters, *leaf_inputs] if p.requires_grad]
            total = sum((t.double().sum() for t in differentiable), torch.zeros((), dtype=torch.float64))
            seen += [g for g in torch.autograd.grad(total, wanted, allow_unused=True) if g is not None]
    seen += [x.detach().clone() for x in inputs]
    if isinstance(function, nn.Module):
        seen += [b.clone() for b in function.buffers()]
    return seen


def doubled(made: tuple[Any, list[torch.Tensor]]) -> tuple[Any, list[torch.Tensor]]:
    function, inputs = made
    wide = [x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in inputs]
    return function.double() if isinstance(function, nn.Module) else function, wide


def references(name: str, calls: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What eager makes of a program, and what it makes in fp64 (eager's own where that does not run)."""
    torch.manual_seed(0)
    eager = outcome(PROGRAMS[name](), None, calls)
    if name in RANDOM:
        return eager, eager
    try:
        torch.manual_seed(0)
        exact = outcome(doubled(PROGRAMS[name]()), None, calls)
    except (RuntimeError, TypeError):
        return eager, eager
    same = len(exact) == len(eager) and all(a.shape == b.shape for a, b in zip(exact, eager, strict=True))
    return eager, exact if same else eager


def difference(got: list[torch.Tensor], eager: list[torch.Tensor], exact: list[torch.Tensor]) -> str:
    if len(got) != len(eager):
        return f"{len(got)} tensors instead of {len(eager)}"
    # What is left after a cancellation (a bias before a batch norm) is known to a rounding of the largest number.
    scale = max((x.double().nan_to_num(0, 0, 0).abs().max().item() for x in exact if x.numel()), default=0.0)
    for i, (g, e, x) in enumerate(zip(got, eager, exact, strict=True)):
        if (g.dtype, g.shape, g.stride()) != (e.dtype, e.shape, e.stride()):
            return f"tensor {i}: {g.dtype} {tuple(g.shape)} {g.stride()}, not {e.dtype} {tuple(e.shape)} {e.stride()}"
        if not g.numel() or (not e.is_floating_point() and torch.equal(g, e)):
            continue
        eps = torch.finfo(e.dtype).eps if e.is_floating_point() else 0.0
        a, b, best = g.double(), e.double(), x.double()
        off = (a - best).abs() > 2 * (b - best).abs() + 16 * eps * (best.abs() + scale)
        if bool((off & ~(a.isnan() & b.isnan()) & (a != b)).any()):
            return (
                f"tensor {i}: off by {float((a - best).abs().max()):.3g}, eager by {float((b - best).abs().max()):.3g}"
            )
    return ""


CALLS = 3


def check(name: str, options: Values) -> str:
    """'' or what is wrong with one program under these options."""
    options = allowed(options)
    eager, exact = references(name, CALLS)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message=".*compiler failed.*")
        try:
            got = outcome(PROGRAMS[name](), options, CALLS)
        except Exception as failure:
            return f"{type(failure).__name__}: {failure}"
    return difference(got, eager, exact)


ROWS = 1000  # an array has fewer


def runs(start: int, count: int, names: list[str], shuffled: bool) -> Iterator[tuple[int, Values, str]]:
    """(row number, row, program): of one array in order, or of one array after another, each in a random order."""
    for seed in itertools.count(start // ROWS) if shuffled else [start // ROWS]:
        first = start % ROWS if seed == start // ROWS else 0
        rows = list(enumerate(covering_array(interesting(), seed)))[first : first + count]
        pairs = [(seed * ROWS + number, row, name) for number, row in rows for name in names]
        if shuffled:
            random.Random(seed).shuffle(pairs)
        yield from pairs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, help="so long, through one array after another")
    parser.add_argument("--start", type=int, default=0, help="1000 times the seed of the array, and its first row")
    parser.add_argument("--count", type=int, default=ROWS, help="rows")
    parser.add_argument("--only", help="names of programs, with commas between")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(PROGRAMS)
    end = time.time() + (arguments.seconds or 10**9)
    done, failed = 0, 0
    for number, row, name in runs(arguments.start, arguments.count, names, shuffled=arguments.seconds is not None):
        if time.time() > end:
            break
        problem = check(name, row)
        flashover.reset()
        done += 1
        if problem:
            failed += 1
            print(f"row {number}, {name}: {problem}\n  {row}", flush=True)
    print(f"{done} programs under options, {failed} wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
