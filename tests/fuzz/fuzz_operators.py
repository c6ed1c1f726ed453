"""torch's sample inputs of each operator, compiled and then called at other sizes: of all tensors at once, and of one
of them alone, which eager mostly refuses. Whatever eager returns or raises the compiled program does.

    python tests/fuzz/fuzz_operators.py [--only NAMES] [--samples N] [--dtype D] [--static] [--alone] [--gradients]
"""

from __future__ import annotations

import search_path

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from comparing import differ
from op_samples import RANDOM, op_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import flashover

# Eager itself reads or writes beyond its tensors where these are of the wrong sizes.
UNCHECKED_BY_EAGER = {
    "lu_unpack", "linalg.lu_solve", "lu_solve", "ormqr", "linalg.ldl_solve", "linalg.householder_product",
    "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "nn.functional.batch_norm",
    "nn.functional.ctc_loss", "_segment_reduce",
}  # fmt: skip
# Where a result is empty.
STRIDES_OF_NOTHING = {"linalg.eig", "frexp", "repeat_interleave"}


@dataclass(frozen=True)
class Change:
    """Dimension `dim` of the tensors: twice as large, larger by one, or 1."""

    name: str
    dim: int = 0
    how: str = "same"
    alone: int | None = None  # of that tensor only


ALL = [Change("same"), Change("twice", 0, "twice"), Change("one more", -1, "more"), Change("one", 0, "one")]
SINGLE = [
    ("one more", 0, "more"),
    ("one more at the end", -1, "more"),
    ("one", 0, "one"),
    ("one at the end", -1, "one"),
]


@dataclass
class Report:
    count: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def changed(t: torch.Tensor, change: Change) -> torch.Tensor:
    out = t.detach().clone()
    if change.how != "same" and t.dim() > 0:
        first = out.narrow(change.dim, 0, min(1, t.shape[change.dim]))
        out = {"one": first.clone(), "more": torch.cat([out, first], change.dim)}.get(change.how)
        out = torch.cat([t.detach()] * 2, change.dim) if out is None else out
    return out.requires_grad_(t.requires_grad)


def outcome(f: Callable[..., Any], *args: Any) -> tuple[Any, Exception | None]:
    torch.manual_seed(0)
    try:
        return f(*args), None
    except Exception as e:
        return None, e


def gradients(results: Any, inputs: list[torch.Tensor]) -> Any:
    outs = [
        t for t in tree_leaves(results) if isinstance(t, torch.Tensor) and t.requires_grad and t.is_floating_point()
    ]
    given = [t for t in inputs if t.requires_grad]
    return torch.autograd.grad([t.square().sum() for t in outs], given, allow_unused=True) if outs and given else ()


def calls(
    op: Any, dtype: torch.dtype, wanted: bool, most: int
) -> Iterator[tuple[Callable[..., Any], list[torch.Tensor]]]:
    """Functions of the tensors of a sample: some with other ranks and flags than those before."""
    seen: set[Any] = set()
    try:
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=wanted and op.supports_autograd))
    except Exception:  # the table's own trouble with this dtype
        return
    for s in samples:
        leaves, tree = tree_flatten((s.input, s.args, s.kwargs))
        places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        kind = (
            tuple(leaves[i].dim() for i in places),
            str([x for x in leaves if not isinstance(x, torch.Tensor)])[:60],
        )
        if (
            kind in seen
            or len(seen) == most
            or not any(kind[0])
            or any(leaves[i].layout != torch.strided for i in places)
        ):
            continue
        seen.add(kind)

        def call(*tensors: torch.Tensor, leaves: Any = leaves, places: Any = places, tree: Any = tree) -> Any:
            given = list(leaves)
            for place, t in zip(places, tensors, strict=True):
                given[place] = t
            first, args, kwargs = tree_unflatten(given, tree)
            return op.op(first, *args, **kwargs)

        yield call, [leaves[i] for i in places]


def check(op: Any, report: Report, *, dtype: torch.dtype = torch.float32, samples: int = 3, dynamic: bool = True,
          alone: bool = False, wanted: bool = False) -> None:  # fmt: skip
    for call, tensors in calls(op, dtype, wanted, samples):
        if outcome(call, *[t.clone() for t in tensors])[1]:
            continue
        flashover.reset()
        compiled = flashover.compile(call, dynamic=dynamic, options={"recompile_limit": 64})
        report.count["samples"] += 1
        each = [Change(f"tensor {k}: {n}", d, how, k) for k in range(min(4, len(tensors))) for n, d, how in SINGLE]
        for change in ALL[:1] + each if alone else ALL:
            own = [changed(t, change if change.alone in (None, k) else ALL[0]) for k, t in enumerate(tensors)]
            eagers = [t.detach().clone().requires_grad_(t.requires_grad) for t in own]
            want, refused = outcome(call, *eagers)
            got, raised = outcome(compiled, *own)
            report.count["calls"] += 1
            report.count["refused"] += refused is not None
            why = ""
            if (refused is None) != (raised is None):
                why = f"eager {refused!r:.120}, compiled {raised!r:.120}"
            elif refused is None and not any(
                isinstance(t, torch.Tensor) and t.is_sparse_csr for t in tree_leaves(want)
            ):
                strides = op.name not in STRIDES_OF_NOTHING
                why = differ(got, want, rtol=2e-4, atol=2e-5, strides=strides)
                if not why and wanted:
                    ours, theirs = outcome(gradients, got, own), outcome(gradients, want, eagers)
                    why = differ(ours[0], theirs[0], rtol=2e-3, atol=2e-3, strides=strides)
            if why:
                shapes = [tuple(t.shape) for t in own]
                report.wrong.append(f"{op.name} {op.variant_test_name} {change.name} {shapes}: {why[:300]}")


def swept(dtype: torch.dtype = torch.float32) -> list[Any]:
    skipped = RANDOM | UNCHECKED_BY_EAGER
    return [op for op in op_db if op.name not in skipped and dtype in op.supported_dtypes("cpu")]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--dtype", default="float32")
    for flag in ("--static", "--alone", "--gradients"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    dtype, found, total = getattr(torch, options.dtype), 0, Counter[str]()
    for op in swept(dtype):
        if options.only and op.name not in options.only.split(","):
            continue
        report = Report()
        check(op, report, dtype=dtype, samples=options.samples, dynamic=not options.static, alone=options.alone,
              wanted=options.gradients)  # fmt: skip
        for line in report.wrong:
            print(line, flush=True)
        found += len(report.wrong)
        total += report.count
    print(f"{dict(total)}, {found} differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
