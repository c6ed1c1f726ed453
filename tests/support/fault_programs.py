"""Programs of about a thousand operators, and faults that are put into the code that is compiled of them: by a C++
compiler that edits kernels, and by FLASHOVER_TEST_EDIT_PLAN (src/compile/edit_plan.h) for all that is no kernel.

Each operator that can be given a fault has a number of its own, by which the edits find it in whatever it is compiled
with. So compiled code really computes otherwise: forward or backward, inside of fused kernels, in calls of libraries,
in writes to inputs.
"""

from __future__ import annotations

import random
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

# Edits each kernel function as FLASHOVER_TEST_EDIT_KERNELS says, lines of "REGEX<tab>TEXT<tab>LEAST LINES".
EDITING_COMPILER = """
import os, pathlib, re, sys
for argument in sys.argv[1:]:
    if argument.endswith(".cpp"):
        file = pathlib.Path(argument)
        parts = re.split(r"(?m)^(?=static void b_)", file.read_text())
        for edit in os.environ.get("FLASHOVER_TEST_EDIT_KERNELS", "").splitlines():
            pattern, text, least = edit.split("\\t")
            parts = [re.sub(pattern, text, p) if p.count("\\n") >= int(least) else p for p in parts]
        file.write_text("".join(parts))
os.execvp("g++", ["g++", *sys.argv[1:]])
"""


@dataclass(frozen=True)
class Site:
    """A line of a program, and how a fault finds it."""

    line: int  # of the file
    operator: str  # aten's name
    number: float

    def in_kernel(self) -> str:
        """A pattern of it as a literal of generated code."""
        (rounded,) = struct.unpack("f", struct.pack("f", self.number))
        return re.escape(f"{rounded:.9g}") + "f"


@dataclass
class Program:
    text: str
    sites: list[Site] = field(default_factory=list)

    def of(self, *operators: str) -> list[Site]:
        return [s for s in self.sites if s.operator in operators]


FUSED: dict[str, str] = {  # by operator: a call with a number of its own
    "leaky_relu": "F.leaky_relu(x, {c})",
    "elu": "F.elu(x, {c})",
    "softplus": "F.softplus(x, {c})",
    "add": "x.tanh() + {c}",
    "mul": "x.sin() * {c}",
    "clamp": "x.clamp(-{c}, 3.0)",
    "native_layer_norm": "F.layer_norm(x, (16,), eps={c})",
    "sum": "(x * {c}).sum(0)",
}
CALLED: dict[str, str] = {  # of torch's libraries
    "addmm": "torch.addmm(x, x, w, alpha={c})",
    "baddbmm": "torch.baddbmm(x[None], x[None], w[None], alpha={c})[0]",
    "renorm": "x.renorm(2, 0, {c})",
}
_HEAD = """import sys, torch, flashover
import torch.nn.functional as F

class Program(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x, w, state):
"""
_TAIL = """        return x

if __name__ == "__main__":
    torch.manual_seed(0)
    program = Program()
    fast = flashover.compile(program, dynamic={dynamic}, options={options})
    for rows in (12, 12, 20):
        x, w, state = torch.randn(rows, 16), torch.randn(16, 16) * 0.2, torch.zeros(16)
        if {training}:
            fast(x.requires_grad_(), w, state).square().sum().backward()
        else:
            with torch.no_grad():
                fast(x, w, state)
    print("went through")
"""


def make_program(
    seed: int, *, sites: int = 330, training: bool = False, dynamic: bool = False, breaks: int = 0, writes: int = 0,
    crosscheck: int = 0,
) -> Program:  # fmt: skip
    """Three operators a site: one with a number of its own, and what adds it to the stream of values."""
    rng = random.Random(seed)
    numbers = [round(0.5 + (i + 1) / 1024, 6) for i in range(480)]
    rng.shuffle(numbers)
    lines = _HEAD.splitlines()
    program = Program("")
    write_at = set(rng.sample(range(sites), writes))
    break_at = {sites * (i + 1) // (breaks + 1) for i in range(breaks)}
    for i in range(sites):
        called = i % 40 == 17
        operator, call = rng.choice(list((CALLED if called else FUSED).items()))
        number = numbers[i] if operator != "native_layer_norm" else round(numbers[i] / 64, 6)
        lines.append(f"        y = {call.format(c=number)}")
        program.sites.append(Site(len(lines), operator, number))
        lines.append("        x = x + y * 0.0625")
        if i % 12 == 11:
            lines.append("        x = F.layer_norm(x, (16,))")
        if i in write_at:
            number = numbers[sites + len(program.of("add_"))]
            lines.append(f"        state.add_(x.mean(0), alpha={number})")
            program.sites.append(Site(len(lines), "add_", number))
        if i in break_at:
            lines.append("        print(end='')")
    options = {"crosscheck": crosscheck} if crosscheck else {}
    program.text = "\n".join(lines) + "\n" + _TAIL.format(dynamic=dynamic, options=options, training=training)
    return program


@dataclass(frozen=True)
class Fault:
    name: str
    kind: str  # wrong, dies, fails
    operators: tuple[str, ...]  # that it may be put into
    kernels: Callable[[Site], str] | None = None  # edits
    plan: Callable[[Site], str] | None = None
    training: bool = False


def _literal(text: str, least: int = 0) -> Callable[[Site], str]:
    return lambda site: f"{site.in_kernel()}\t{text.format(c=site.number)}\t{least}"


def _called(name: str) -> Callable[[Site], str]:
    return lambda site: f"call aten.{name}.\t, {site.number:.17g})\t, {site.number * 1.03})"


IN_KERNELS = ("leaky_relu", "elu", "add", "mul", "sum")
FAULTS = [
    Fault("a number in a kernel, 3 % off", "wrong", IN_KERNELS, _literal("({c}f * 1.03f)")),
    Fault("one iteration of a kernel", "wrong", ("leaky_relu", "mul"), _literal("(o == 1 ? {c}f * 1.5f : {c}f)")),
    Fault(
        "only in kernels of 45 lines and more", "wrong", ("leaky_relu", "mul", "elu"), _literal("({c}f * 1.03f)", 45)
    ),
    Fault("an argument of a library's call", "wrong", ("addmm",), plan=_called("addmm")),
    Fault("an argument of a library's call", "wrong", ("baddbmm",), plan=_called("baddbmm")),
    Fault("an argument of a library's call", "wrong", ("renorm",), plan=_called("renorm")),
    Fault("a kernel reads address 8", "dies", IN_KERNELS, _literal("(*(volatile float*)8)")),
    Fault("a kernel is not compiled", "fails", IN_KERNELS, _literal("no_such_name")),
]


def environment(folder: Path, fault: Fault | None, site: Site | None) -> dict[str, str]:
    """Variables for programs that are to have the fault; `folder` gets the compiler and a cache of its own."""
    folder.mkdir(exist_ok=True)
    wrapper = folder / "cxx.py"
    wrapper.write_text(EDITING_COMPILER)
    out = {"CXX": f"{sys.executable} {wrapper}", "FLASHOVER_CACHE_DIR": str(folder / "cache")}
    out["FLASHOVER_REMEMBER_SIZES"] = "0"
    if fault and site and fault.kernels:
        out["FLASHOVER_TEST_EDIT_KERNELS"] = fault.kernels(site)
    if fault and site and fault.plan:
        out["FLASHOVER_TEST_EDIT_PLAN"] = fault.plan(site)
    return out
