"""Packages sweep: does every architecture export, package and run without Python, with the compiled model's results bit for bit?

    python benchmarks/packages_sweep.py --slice 0/4 --json packages.json     # every fourth of the sweep's architectures
    python benchmarks/packages_sweep.py --only resnet18,bert                 # names that contain one of these
    python benchmarks/packages_sweep.py --json packages.json --again         # what was not equal in that file
    python benchmarks/packages_sweep.py --json packages.json --markdown docs/benchmarks/packages-sweep.md

The architectures are those of sweep.py, at the smallest sizes that work, with random weights, without gradients. A process for each:
export, package, then flashover-run in a process without Python, with an empty environment (no compiler, no cache to be found), and
flashover.compile's results beside it. Status: equal (each result, bit for bit), DIFFERENT, RUNNER (it failed), not packaged,
not exported (with the reasons), not built (the model does not run in eager).

--dynamic: the first dim of all tensors may change together (Dim.AUTO), and of integers (tokens) the second; the call is of three times
the batch where the program takes that, else of the example, beside one with the sizes of a compilation that takes any. What is not equal
bit for bit is "close" where its error is that of eager's f32 (within 4 times, beside f64). "sizes": how many of the entry's may change.
--bare: flashover-run-bare instead, where no operator needs libtorch ("torch" lists them else); close where operators are replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np
import torch
import torch.utils._pytree as pytree

sys.path.insert(0, str(Path(__file__).parent))
import sweep_models

NO_ENVIRONMENT = {"PATH": "/nonexistent", "HOME": "/nonexistent"}
STATUSES = ("equal", "close", "torch", "DIFFERENT", "RUNNER", "not packaged", "not exported", "CRASH", "not built")


def tensors_of(value: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def prepare_for_export(model: Any) -> None:
    """As transformers asks of who exports: no DynamicCache, which is no pytree; experts without operators in Python."""
    if not hasattr(model, "config"):
        return
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "use_cache"):
            module.config.use_cache = False
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("batched_mm")


def by_runner(package: Path, given: list[torch.Tensor], threads: int, name: str) -> list[torch.Tensor] | str:
    """The results of the runner, or what it said."""
    import flashover

    folder = package.parent
    files = []
    for i, t in enumerate(given):
        files.append(folder / f"in{i}.npy")
        np.save(files[-1], np.ascontiguousarray(t.numpy()))
    runner = Path(flashover.__file__).parent / "runtime" / "bin" / name
    command = [runner, package, *files, "--out", folder / "out", "--threads", str(threads)]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=NO_ENVIRONMENT, timeout=120)
    if done.returncode != 0:
        return done.stderr.strip()[:300] or f"status {done.returncode}"
    made = sorted(folder.glob("out*.npy"), key=lambda p: int(p.stem[3:]))
    return [torch.from_numpy(np.load(p)) for p in made]


def first_difference(got: list[torch.Tensor], want: list[torch.Tensor]) -> str:
    if len(got) != len(want):
        return f"{len(got)} tensors, the compiled model gives {len(want)}"
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"result {i} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
        if not torch.equal(a.reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8)):
            return f"result {i} differs by {(a.double() - b.double()).abs().max():.1e}"
    return ""


def changing_sizes(model: Any, args: Any, kwargs: Any) -> Any:
    """For every tensor: the first dim, and of integers the second."""
    from torch.export import Dim

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return None
        dims = 2 if not leaf.is_floating_point() else 1
        return dict.fromkeys(range(min(dims, leaf.dim())), Dim.AUTO)

    given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    return {name: pytree.tree_map(of, value) for name, value in given.items()}


def repeated(times: int) -> Any:
    return lambda leaf: torch.cat([leaf] * times) if isinstance(leaf, torch.Tensor) and leaf.dim() else leaf


def is_close(got: list[torch.Tensor], model: Any, args: Any, kwargs: Any) -> bool:
    """Beside f64: no further off than eager's f32 (4 times, or a few units in the last place)."""

    def double(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    eager = tensors_of(model(*args, **kwargs))
    exact = tensors_of(
        copy.deepcopy(model).double()(*pytree.tree_map(double, tuple(args)), **pytree.tree_map(double, kwargs))
    )
    for g, e, x in zip(got, eager, exact, strict=True):
        if g.shape != x.shape or g.dtype != e.dtype:
            return False
        if not g.is_floating_point():
            if not torch.equal(g, e):
                return False
            continue
        if x.numel() == 0:
            continue
        unit = 1e-6 * x.abs().max()
        if not ((g.double() - x).abs().max() <= torch.maximum(4 * (e.double() - x).abs().max(), unit)):
            return False
    return True


def run(kind: str, name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    import flashover

    threads = options.threads
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    row: dict[str, Any] = {"kind": kind, "model": name}
    with torch.no_grad():
        try:
            model, args, kwargs = sweep_models.make(kind, name)
            prepare_for_export(model)
            model(*args, **kwargs)
            if options.dynamic:  # (a batch of one is a constant to torch.export)
                with contextlib.suppress(Exception):
                    two = pytree.tree_map(repeated(2), (tuple(args), kwargs))
                    model(*two[0], **two[1])
                    args, kwargs = two
        except Exception as failure:
            return row | {"status": "not built", "reason": f"{type(failure).__name__}: {failure}"[:160]}
        start = time.perf_counter()
        try:
            shapes = changing_sizes(model, args, kwargs) if options.dynamic else None
            program = flashover.export(model, tuple(args), kwargs, dynamic_shapes=shapes)
        except Exception as failure:
            return row | {"status": "not exported", "reason": f"{type(failure).__name__}: {failure}"[:600]}
        row["export"] = time.perf_counter() - start
        start = time.perf_counter()
        try:
            flashover.package(program, folder / "p.flash")
        except Exception as failure:
            return row | {"status": "not packaged", "reason": f"{type(failure).__name__}: {failure}"[:600]}
        row["package"] = time.perf_counter() - start
        entry = flashover.package_info(folder / "p.flash")["entries"][0]
        if options.bare and entry["needs_torch"]:
            return row | {"status": "torch", "reason": ", ".join(entry["needs_torch"])}
        loaded = next(iter(flashover.load(folder / "p.flash").entries.values()))
        types = list(loaded.arguments.values())
        row["sizes"] = len(set(re.findall(r"\bs\d+", " ".join(types))))
        if options.dynamic and types and all(re.search(r"\[s0\b", t) or t == "any" for t in types):
            args, kwargs = pytree.tree_map(repeated(3), (tuple(args), kwargs))
            row["larger"] = True
        given = tensors_of((args, kwargs))
        torch.manual_seed(0)
        want = tensors_of(flashover.compile(model, dynamic=True if options.dynamic else None)(*args, **kwargs))
        got = by_runner(folder / "p.flash", given, threads, "flashover-run-bare" if options.bare else "flashover-run")
        if isinstance(got, str):
            return row | {"status": "RUNNER", "reason": got}
        different = first_difference(got, want)
        status = "equal"
        if different:
            status = (
                "close" if (options.dynamic or options.bare) and is_close(got, model, args, kwargs) else "DIFFERENT"
            )
        return row | {"status": status, "reason": different}


def in_child(kind: str, name: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="flashover-packages") as folder:
        result = Path(folder) / "row.json"
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            quiet = os.open(os.devnull, os.O_WRONLY)
            if not options.verbose:
                os.dup2(quiet, 1), os.dup2(quiet, 2)
            signal.alarm(options.limit)  # which ends the process
            try:
                result.write_text(json.dumps(run(kind, name, options, Path(folder))))
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        if result.exists():
            return json.loads(result.read_text())
    reason = f"over {options.limit} s" if status & 127 == signal.SIGALRM else f"died, wait status {status}"
    return {"kind": kind, "model": name, "status": "CRASH", "reason": reason}


def table(rows: list[dict[str, Any]], command: str) -> str:
    built = [r for r in rows if r["status"] != "not built"]
    exported = [r for r in built if r["status"] != "not exported"]
    equal = [r for r in built if r["status"] == "equal"]
    out = [
        "# Packages of many architectures",
        "",
        f"`{command}`, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}.",
        "",
        f"{len(built)} architectures run in eager; {len(exported)} export"
        f" ({100 * len(exported) / max(len(built), 1):.1f} %). {len(equal)} run without",
        "Python with the compiled model's results, bit for bit.",
        "",
        "| architecture | | export, s | package, s | |",
        "|---|---|---|---|---|",
    ]
    for r in sorted(built, key=lambda r: (r["status"] == "equal", r["kind"], r["model"])):
        times = " | ".join(f"{r[k]:.1f}" if k in r else "" for k in ("export", "package"))
        reason = re.sub(r"/\S*site-packages/", "", " ".join(str(r["reason"]).split())).replace("|", "/")[:200]
        out.append(f"| {r['kind']}/{r['model']} | {r['status']} | {times} | {reason} |")
    return "\n".join(out) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="comma list of parts of names")
    parser.add_argument("--kind", default="timm,torchvision,transformers")
    parser.add_argument("--slice", default="0/1")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=int, default=180, help="seconds a model")
    parser.add_argument("--dynamic", action="store_true", help="sizes that may change")
    parser.add_argument("--bare", action="store_true", help="without torch")
    parser.add_argument("--again", action="store_true", help="what is in --json and not equal")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path, help="writes the table of --json, runs nothing")
    options = parser.parse_args()
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    if options.json and options.json.exists():
        rows = {(r["kind"], r["model"]): r for r in json.loads(options.json.read_text())}
    if options.markdown:
        options.markdown.write_text(table(list(rows.values()), "python benchmarks/packages_sweep.py"))
        return 0
    part, parts = map(int, options.slice.split("/"))
    wanted = [w for w in options.only.split(",") if w]
    chosen = [c for c in sweep_models.cases() if c[0] in options.kind.split(",")]
    chosen = [c for c in chosen if not wanted or any(w in c[1] for w in wanted)][part::parts]
    if options.again:
        chosen = [c for c in chosen if rows.get(c, {}).get("status") not in (None, "equal", "not built")]
    import transformers.models.auto.modeling_auto  # noqa: F401  before the forks

    import flashover  # noqa: F401

    for kind, name in chosen:
        row = rows[kind, name] = in_child(kind, name, options)
        print(f"{row['status']:12s} {kind}/{name} {' '.join(row.get('reason', '').split())[:200]}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(list(rows.values()), indent=1))
    count = {s: sum(r["status"] == s for r in rows.values()) for s in STATUSES}
    print(count)
    return 1 if count["DIFFERENT"] or count["RUNNER"] or count["CRASH"] else 0


if __name__ == "__main__":
    sys.exit(main())
