"""Writes docs/developer/one-model.md: examples/one_model.py after each stage of the compiler.

    python tools/one_model.py            # writes the page
    python tools/one_model.py --check    # exit status 1, and what differs, if the page is not what would be written

The page is the same on every machine: kernels are those of AVX2, no library is measured, and it does not say which
kernels share a binary (there are as many binaries as cores). Bytecode is Python 3.11's; under another Python that
section is left as it stands in the page.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import dis
import io
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "developer" / "one-model.md"
BYTECODE_OF = (3, 11)
os.environ["FLASHOVER_ISA"] = "avx2"  # before the core is loaded
for folder in (ROOT / "python", ROOT / "examples"):
    sys.path.insert(0, str(folder))

import one_model  # noqa: E402
import torch  # noqa: E402

import flashover  # noqa: E402
from flashover import _C  # noqa: E402

FILE = str(Path(one_model.__file__))
WIDTH = 120


def block(language: str, text: str) -> str:
    return f"```{language}\n{fitted(text)}\n```"


def fitted(text: str) -> str:
    """Lines that are too long are broken, before the comment or in the list of what is read."""
    out: list[str] = []
    for line in text.strip("\n").splitlines():
        for mark in ("  # ", " reads %1"):
            if len(line) > WIDTH and mark in line:
                head, _, rest = line.partition(mark)
                out.append(head)
                line = " " * 6 + mark.lstrip() + rest
        out.append(line)
    return "\n".join(out)


def bytecode() -> str:
    if sys.version_info[:2] == BYTECODE_OF:
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            dis.dis(one_model.Block.forward)
        return block("text", re.sub(r"\n\s*\n", "\n", told.getvalue()))
    return re.search(r"## 1\..*?(```text\n.*?```)", PAGE.read_text(), re.S)[1]  # type: ignore[index]


def lines(text: str, *wanted: str) -> str:
    """The lines in which one of the words stands, in their order."""
    return "\n".join(line for line in text.splitlines() if any(w in line for w in wanted))


def without_binaries(plan: str) -> str:
    """One line for all of them, and none of their numbers."""
    key_and_size = r"( +)binary b\d+ \w+  # \d+ bytes\n"
    told = r"\1binary b.. (how many, their keys and sizes depend on the cores and the compiler)\n"
    return re.sub(r'(kernel k\d+ = "\w+" in b)\d+', r"\1..", re.sub(f"(?:{key_and_size})+", told, plan))


def page() -> str:
    torch.set_num_threads(2)
    model, x = one_model.Block().eval(), one_model.example()
    with torch.no_grad():
        report = flashover.explain(model, backend="eager")(x)  # capture only
    traced = report.graphs[0]["texts"]["traced"].replace(FILE, "one_model.py")
    guards = "\n".join(report.to_dict()["guards"]).replace(FILE, "one_model.py")
    guards = guards.replace(str(Path(torch.__file__).parent.parent) + "/", "")
    compiled = _C.compile_text(traced, {"cache": "False"}, texts=True)
    texts = dict(compiled.texts)
    sources = dict(compiled.kernel_sources)

    changes: list[str] = []
    before = ""
    for name, text in compiled.texts:
        if name == "numerics":  # a certificate, no graph
            continue
        if name in ("loops", "plan"):
            break
        count = text.count(" = ") - text.count(" = input ")
        state = "the trace" if not before else "unchanged" if text == before else f"{count} nodes"
        changes.append(f"| `{name}` | {state} |")
        before = text
    core = texts["split_frozen"]
    loops = texts["loops"]
    plan = without_binaries(texts["plan"])
    nodes, _, kernels = loops.partition("\nkernel ")
    symbols = re.findall(r'kernel k\d+ = "(\w+)"', plan)
    gelu = next(source for symbol, source in sources.items() if "erf" in source and symbol in symbols)
    chosen = lines(
        guards,
        "self is",
        "x is a tensor",
        "self.norm.eps",
        "self.up.weight is",
        "Block.forward is",
        "global state",
    )
    return TEMPLATE.format(
        program=block("python", Path(FILE).read_text().partition("\n\n\n")[2].partition("\n\n\ndef")[0]),
        bytecode=bytecode(),
        guards=block("text", chosen),
        traced=block("text", traced),
        passes="\n".join(["| after | |", "|---|---|", *changes]),
        core=block("text", core),
        nodes=block("text", nodes),
        kernel=block("text", "kernel " + kernels.split("\nkernel ")[1].strip()),
        source=block("cpp", gelu),
        plan=block("text", plan),
    )


TEMPLATE = """# One model after each stage

This page is made by `python tools/one_model.py`; a test fails when it is stale. The program is
`examples/one_model.py`, called without gradients, with a tensor of 4 x 8. Kernels are for AVX2. Lines of more than
{{width}} characters are broken.

{program}

## 1. Frame: bytecode is run on the real objects

`frame/` evaluates the bytecode of `forward`, and of every Python function that it calls, once. Objects are the real
ones; in the place of tensors stand trace tensors, which have sizes and types and no data. This is what Python
compiled:

{bytecode}

## 2. Guards: what was looked at

Whatever the evaluation read from outside becomes a fact. `guards/` compares all of them before compiled code runs.
There are more than a hundred for this call, most of them about `nn.Module`'s own machinery. A few, in words:

{guards}

## 3. Trace: operator calls become a graph

torch's dispatcher calls the backend, and `trace/` is the backend: each call is a node. `s6` names the memory a value
lies in, so aliases are seen: `%8` is a view of the parameter `%6`. A comment has the line and the module of the
program.

{traced}

## 4. Graph passes

The passes run in the order of `src/compile/pipeline.cpp`. For this graph most of them have nothing to do.

{passes}

`functionalize` removes writes and aliases; `decompose` writes operators as prims, a closed set of about a hundred
simple ones. What has no decomposition (`aten.addmm`) stays a call of torch. After the last pass:

{core}

## 5. Loops: what is computed where

A *loop node* is a value that gets memory or an accumulator; other values are computed where they are read. Nodes that
can share their outer loops become a *group*, and a group becomes a kernel. `*` marks the loop that runs over SIMD
lanes, `!` a value that lies in memory.

{nodes}

The kernel of gelu, as loops over scalars:

{kernel}

## 6. Kernel: source

`kernel/cpp` writes C++ that includes nothing; `VF` is a vector of 8 floats. Functions such as `v_erf_fast` come from
a library of text that is put before it (`kernel/cpp/prelude`). Its name is a hash of the loops above: equal
loops, equal name, compiled once.

{source}

## 7. Plan: what a call does

The plan is data: tensors, each stored somewhere (an input, the arena of temporaries, an output, whatever an operator
returned, a view of another one), and steps. `run/` executes it; the disk cache stores it.

{plan}
""".replace("{{width}}", str(WIDTH))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    text = page()
    if parser.parse_args().check:
        stands = PAGE.read_text()
        differs = difflib.unified_diff(stands.splitlines(), text.splitlines(), str(PAGE), "written anew", lineterm="")
        print("\n".join(differs), file=sys.stderr)
        return 0 if stands == text else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
