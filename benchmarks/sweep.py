"""Capture sweep: does every architecture compile whole and give eager's results? Smallest sensible sizes, random weights, CPU.

    python benchmarks/sweep.py                           # everything; one line a model, a summary at the end
    python benchmarks/sweep.py --only vit,bert           # names that contain one of these; =bert: exactly that name
    python benchmarks/sweep.py --kind timm --slice 0/4   # every fourth
    python benchmarks/sweep.py --json sweep.json --markdown docs/benchmarks/sweep.md
    python benchmarks/sweep.py --json sweep.json --again # only what was not whole in that file; the file is updated
    python benchmarks/sweep.py --device cuda --jobs 16   # on a GPU, 16 models at a time
    python benchmarks/sweep.py --gradients               # the gradients of a training step (no dropout) as well
    python benchmarks/sweep.py --sizes                   # batch, then length or height and width change, too

torch.compile's capture beside ours: benchmarks/sweep_beside.py. A process forked for each model, with a time limit: a crash is a row of the table. Status: whole (one graph, equal to eager),
breaks (equal, not one graph), WRONG, CRASH, not built (the model itself does not run; the reason is its own).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import math
import os
import pickle
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch

sys.path.insert(0, str(Path(__file__).parent))
import models as bench
import sweep_models

FLOOR = {"fp32": 1e-4, "bf16": 3e-2}


GRADIENTS = False  # --gradients


def outputs(model: Any, args: Any, kwargs: Any) -> list[Any]:
    """Results of a call; then, where asked for, the parameters' gradients of a random sum of the results (a sum
    of squares behind a normalization has none)."""
    torch.manual_seed(1)
    with torch.set_grad_enabled(GRADIENTS):
        found = [t for t in bench.tensors(model(*args, **kwargs)) if isinstance(t, torch.Tensor)]
    if not GRADIENTS:
        return [t.detach().clone() for t in found]
    parameters = list(model.parameters())
    for p in parameters:
        p.grad = None
    reached = [t for t in found if t.requires_grad and t.numel()]
    losses = [(t * torch.randn(t.shape).to(t)).float().mean() for t in reached]
    results = [t.detach().clone().requires_grad_(t.requires_grad) for t in found]
    if losses:
        torch.stack(losses).sum().backward()
    missing = torch.empty(0)  # has another shape than any gradient
    return results + [missing if p.grad is None else p.grad.detach().clone() for p in parameters]


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same with other tensors, also inside lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {k: mapped(v, change) for k, v in value.items()}
    return type(value)(mapped(v, change) for v in value) if type(value) in (list, tuple) else value


def same_metadata(a: list[Any], b: list[Any]) -> str:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        for what in ("dtype", "shape", "requires_grad"):
            if getattr(x, what) != getattr(y, what):
                return f"output {i}: {what} {getattr(x, what)}, eager {getattr(y, what)}"
    return f"{len(a)} output tensors, eager {len(b)}" if len(a) != len(b) else ""


def difference(got: list[Any], want: list[Any]) -> float:
    """Largest over the outputs: rmse over the rms of eager's, or over 1e-4 of the largest one's: the gradient of a key's
    bias is zero but for rounding. NaN equals NaN and infinity itself."""
    sizes = [
        float(b.double()[b.isfinite()].square().mean().sqrt()) for b in want if b.is_floating_point() and b.numel()
    ]
    floor = max([1e-6, *(1e-4 * size for size in sizes if GRADIENTS and math.isfinite(size))])
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        if not b.is_floating_point():
            if not torch.equal(a, b):
                return math.inf
            continue
        a, b = a.detach().double(), b.detach().double()
        if not torch.equal(a.isfinite(), b.isfinite()):
            return math.inf
        a, b = a[b.isfinite()], b[b.isfinite()]
        if a.numel():
            worst = max(worst, float((a - b).square().mean().sqrt() / b.square().mean().sqrt().clamp_min(floor)))
    return worst


def in_double(model: Any, args: Any, kwargs: Any) -> list[Any]:
    """The outputs in fp64; what the model makes itself (`torch.ones(n)`) too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return outputs(
            copy.deepcopy(model).double(),
            [bench.to_double(a) for a in args],
            {k: bench.to_double(v) for k, v in kwargs.items()},
        )
    finally:
        torch.set_default_dtype(before)


def by_torch_compile(model: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, backend="eager")


def compare(row: dict[str, Any], compiled: Any, model: Any, args: Any, kwargs: Any, other_compiler: Any = None) -> None:
    """Two calls of `compiled` against eager: fills in the row's difference, status and reason."""
    want = outputs(model, args, kwargs)
    worst = 0.0
    for _ in range(2):
        got = outputs(compiled, args, kwargs)
        if text := same_metadata(got, want):
            if same_metadata(outputs(model, nudged(args), nudged(kwargs)), want):
                row |= {"nudged": True, "reason": "eager's results change as much when its inputs change by a rounding"}
            else:
                row |= {"status": "WRONG", "reason": text}
            return
        worst = max(worst, difference(got, want))
    row["difference"] = worst
    if worst <= FLOOR[row["precision"]]:
        return
    again = difference(outputs(model, args, kwargs), want)
    if again > worst / 2:
        row["note"] = f"eager differs from itself by {again:.1e}"
        return
    # Models that ask torch.compiler.is_compiling() may compute something else when it says yes.
    try:
        other = outputs(other_compiler() if other_compiler else by_torch_compile(model), args, kwargs)
        if not same_metadata(got, other) and difference(got, other) <= FLOOR[row["precision"]]:
            row["as_torch_compile"] = True
            row["reason"] = (
                "the model computes something else under torch.compiler.is_compiling(): torch.compile gives the same"
            )
            return
    except Exception:
        pass
    # A network may magnify rounding: against doubles, at most twice eager's own error.
    try:
        precise = in_double(model, args, kwargs)
        mine, eager = difference(got, precise), difference(want, precise)
        row["note"] = f"error against fp64 {mine:.1e}, eager's {eager:.1e}"
        if mine <= 2 * eager + FLOOR[row["precision"]]:
            return
    except Exception as failure:
        row["note"] = f"no fp64 reference: {failure}"[:80]
    # Choices (which box, which expert, which token) hang on the last bit.
    other = outputs(model, nudged(args), nudged(kwargs))
    if same_metadata(other, want) or difference(other, want) >= worst / 2:
        row |= {"nudged": True, "reason": "eager's results change as much when its inputs change by a rounding"}
        return
    row |= {"status": "WRONG", "reason": f"difference {worst:.2e}"}


def of_size(value: Any, batch: int, more: int, longer: int) -> Any:
    """The same inputs of `more` samples; tokens and features `longer` times as many, images two thirds larger."""

    def change(t: torch.Tensor) -> torch.Tensor:
        if t.dim() == 0 or t.shape[0] != batch:
            return t
        t = torch.cat([t] * more)
        if longer > 1 and t.dim() in (2, 3):
            t = torch.cat([t] * longer, 1)
        if longer > 1 and t.dim() == 4:
            t = torch.cat([t, t[:, :, : 2 * (t.shape[2] // 3)]], 2)
            t = torch.cat([t, t[..., : 2 * (t.shape[3] // 3)]], 3)
        return t

    return mapped(value, change)


def compare_sizes(row: dict[str, Any], model: Any, args: Any, kwargs: Any) -> None:
    """One compiled model at sizes that eager takes: `graphs` counts its compiles, `sizes` what was called."""
    import flashover

    found = [t for t in bench.tensors((args, kwargs)) if t.dim() > 0]
    batch = found[0].shape[0] if found else 0
    calls = [("first", args, kwargs)]
    for what, more, longer in (("batch", 2, 1), ("batch", 3, 1), ("length", 2, 2), ("length", 1, 2), ("length", 3, 1)):
        own = of_size((args, kwargs), batch, more, longer)
        with contextlib.suppress(Exception):
            outputs(model, *own)
            calls.append((what, *own))
    compiled, before = flashover.compile(model, fullgraph=True), flashover.compile_stats()["graphs"]
    for _, own, named in calls:
        compare(row, compiled, model, own, named)
        if row["status"] != "whole":
            return
    row["graphs"] = flashover.compile_stats()["graphs"] - before
    row["sizes"] = [what for what, *_ in calls]


def nudged(value: Any) -> Any:
    """The same inputs, moved by about one rounding of bfloat16 (fp32 runs get here only after the fp64 reference)."""

    def nudge(t: torch.Tensor) -> torch.Tensor:
        return t * (1 + 2**-8 * (2 * torch.rand_like(t) - 1)) if t.is_floating_point() else t

    return mapped(value, nudge)


def run(kind: str, name: str, options: argparse.Namespace, report: Any) -> dict[str, Any]:
    import flashover

    global GRADIENTS
    GRADIENTS = options.gradients
    torch.set_num_threads(options.threads)
    torch.backends.cudnn.allow_tf32 = False
    row: dict[str, Any] = {"kind": kind, "model": name, "precision": options.precision}
    warnings.simplefilter("ignore")
    try:
        with torch.no_grad():
            model, args, kwargs = sweep_models.make(kind, name)
            model, (args, kwargs) = model.to(options.device), mapped((args, kwargs), lambda t: t.to(options.device))
    except BaseException as failure:
        return row | {"status": "not built", "reason": f"{type(failure).__name__}: {failure}"[:160]}
    row["parameters"] = sum(p.numel() for p in model.parameters())
    report(row | {"status": "CRASH", "reason": "died or hung"})
    start = time.perf_counter()
    with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
        try:
            for _ in range(2):  # some models keep a part of the first call's autograd graph
                outputs(model, args, kwargs)
        except Exception as failure:
            return row | {"status": "not built", "reason": f"eager: {type(failure).__name__}: {failure}"[:160]}
        try:
            try:
                row["status"] = "whole"
                if options.sizes:
                    compare_sizes(row, model, args, kwargs)
                else:
                    compare(row, flashover.compile(model, fullgraph=True), model, args, kwargs)
            except flashover.exc.FlashoverError as declined:
                row |= {"status": "breaks", "reason": declined_text(declined)}
                if isinstance(declined, flashover.exc.BackendCompilerFailed):
                    row["reason"] = "COMPILER: " + row["reason"]
                if not options.capture_only:
                    flashover.reset()
                    compare(row, flashover.compile(model), model, args, kwargs)
                    row["graph_breaks"] = flashover.compile_stats()["graph_breaks"]
        except Exception as failure:
            row |= {"status": "CRASH", "reason": f"{type(failure).__name__}: {failure}"[:300]}
    row["seconds"] = round(time.perf_counter() - start, 2)
    return row


def declined_text(declined: Any) -> str:
    where = getattr(declined, "where", "")
    reason = str(getattr(declined, "reason", declined))
    for marker in ("site-packages/",):
        where = where.split(marker)[-1]
    return f"{reason[:300]}" + (f" @ {where}" if where else "")


def in_child(kind: str, name: str, options: argparse.Namespace) -> dict[str, Any]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        code = 1
        try:
            os.setpgid(0, 0)
            devnull = os.open(os.devnull, os.O_WRONLY)
            if not options.verbose:
                os.dup2(devnull, 1), os.dup2(devnull, 2)

            def report(row: dict[str, Any]) -> None:
                data = pickle.dumps(row)
                os.write(write, len(data).to_bytes(4, "little") + data)

            report(run(kind, name, options, report))
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    data = b""
    end = time.monotonic() + options.limit
    while (left := end - time.monotonic()) > 0:
        if select.select([read], [], [], left)[0]:
            part = os.read(read, 1 << 16)
            if not part:
                break
            data += part
    os.close(read)
    timed_out = time.monotonic() >= end
    for kill in (lambda: os.killpg(child, signal.SIGKILL), lambda: os.kill(child, signal.SIGKILL)):
        try:
            kill()
            break
        except ProcessLookupError:
            continue
    _, status = os.waitpid(child, 0)
    row: dict[str, Any] = {
        "kind": kind,
        "model": name,
        "precision": options.precision,
        "status": "not built",
        "reason": "building it died or took too long",
    }
    while len(data) >= 4:
        size = int.from_bytes(data[:4], "little")
        row, data = pickle.loads(data[4 : 4 + size]), data[4 + size :]
    if row.get("reason") == "died or hung":
        row["reason"] = f"over {options.limit} s" if timed_out else f"died, wait status {status}"
    return row


def each(cases: list[sweep_models.Case], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    end = time.monotonic() + options.seconds
    for kind, name in cases:
        if time.monotonic() > end:
            return
        row = in_child(kind, name, options)
        print(
            f"{row['status']:9s} {kind}/{name} {row.get('seconds', 0):.1f}s {row.get('difference', 0):.0e} {row.get('graphs', '')} {row.get('reason', '')} {row.get('note', '')}",
            flush=True,
        )
        yield row


def shared(cases: list[sweep_models.Case], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The same by several processes, which write to one pipe, a line a row."""
    read, write = os.pipe()
    for job in range(options.jobs):
        if os.fork() == 0:
            os.close(read)
            for row in each(cases[job :: options.jobs], options):
                os.write(write, json.dumps(row).encode() + b"\n")  # short enough to be written at once
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as lines:
        for line in lines:
            yield json.loads(line)
    for _ in range(options.jobs):
        os.wait()


def is_equal(r: dict[str, Any]) -> str:
    if r.get("as_torch_compile"):
        return "as torch.compile"
    if r.get("nudged"):
        return "as eager, inputs rounded"
    if r["status"] not in ("whole", "breaks"):
        return "NO"
    return "yes" if "difference" in r else "not compared"


def table(rows: list[dict[str, Any]], command: str) -> str:
    precision = sorted({r["precision"] for r in rows})
    out = [f"`{command}`, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}.", ""]
    built = [r for r in rows if r["status"] != "not built"]
    for p in precision:
        mine = [r for r in built if r["precision"] == p]
        equal = [r for r in mine if is_equal(r) == "yes"]
        whole = [r for r in mine if r["status"] == "whole"]
        out.append(
            f"{p}: {len(mine)} architectures run in eager; {len(equal)} equal to eager, {len(whole)} captured whole ({100 * len(whole) / max(len(mine), 1):.1f} %)."
        )
    out += ["", "| architecture | precision | equal | whole | difference | reason |", "|---|---|---|---|---|---|"]
    for r in sorted(built, key=lambda r: (r["status"] == "whole", r["kind"], r["model"])):
        reason = str(r.get("reason", "")).replace("|", "/").replace("\n", " ")[:200]
        out.append(
            f"| {r['kind']}/{r['model']} | {r['precision']} | {is_equal(r)} | {'yes' if r['status'] == 'whole' else 'no'} | {r.get('difference', math.nan):.1e} | {reason} |"
        )
    missing = [r for r in rows if r["status"] == "not built"]
    out += ["", f"Not built offline ({len(missing)}):", ""]
    out += [f"- {r['kind']}/{r['model']}: {str(r['reason'])[:100]}".replace("\n", " ") for r in missing]
    return "\n".join(out) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="comma list of parts of names; =name: exactly")
    parser.add_argument("--kind", default="timm,torchvision,transformers")
    parser.add_argument("--slice", default="0/1")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument(
        "--capture-only", action="store_true", help="do not run what is not whole a second time with breaks"
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--gradients", action="store_true", help="a backward as well, in eval mode")
    parser.add_argument("--sizes", action="store_true", help="several batches and lengths by one compiled model")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=int, default=180, help="seconds a model")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop starting models after this time")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--missing", action="store_true", help="only what --json does not hold yet")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    if options.json and options.json.exists():
        rows = {(r["kind"], r["model"], r["precision"]): r for r in json.loads(options.json.read_text())}
    wanted = [w for w in options.only.split(",") if w]
    part, parts = map(int, options.slice.split("/"))
    chosen = [c for c in sweep_models.cases() if c[0] in options.kind.split(",")]
    if wanted:
        chosen = [c for c in chosen if any(c[1] == w[1:] if w[0] == "=" else w in c[1] for w in wanted)]
    if options.again:
        chosen = [
            c for c in chosen if rows.get((*c, options.precision), {}).get("status") not in (None, "whole", "not built")
        ]
    if options.missing:
        chosen = [c for c in chosen if (*c, options.precision) not in rows]
    import transformers.models.auto.modeling_auto  # noqa: F401  before the forks

    import flashover  # noqa: F401

    done = shared(chosen[part::parts], options) if options.jobs > 1 else each(chosen[part::parts], options)
    for row in done:
        rows[row["kind"], row["model"], options.precision] = row
        if options.json:
            options.json.write_text(json.dumps(list(rows.values()), indent=1))
    count = {
        s: sum(r["status"] == s for r in rows.values()) for s in ("whole", "breaks", "WRONG", "CRASH", "not built")
    }
    print(count)
    if options.markdown:
        options.markdown.write_text(table(list(rows.values()), "python benchmarks/sweep.py " + " ".join(sys.argv[1:])))
    return 1 if count["WRONG"] or count["CRASH"] else 0


if __name__ == "__main__":
    sys.exit(main())
