"""python -m flashover minify: a compiler with a fault in it (a C++ compiler that changes one kernel function) is traced
to one operator, whatever the fault does: wrong numbers, a crash, an endless loop, a failure to compile."""

from __future__ import annotations

import operator
import os
import subprocess
import time
from pathlib import Path

import pytest
import torch
from faulty_compiler import ASINH, CRASHES, ENDLESS, NOT_COMPILED, WRONG, environment
from interpreters import python
from torch import fx

from flashover import _graph_file, _reduce, _repro

THOUSAND = """
import torch, flashover

def f(x, w):
    for i in range(200):
        y = x * 0.1 + w
        y = torch.sin(y) if i % 2 else torch.cos(y)
        if i == 117:
            y = torch.asinh(y)
        x = x + y * 0.1
    return x

with torch.no_grad():
    flashover.compile(f)(torch.randn(64, 64), torch.randn(64))
print("went through")
"""
BACKWARD = """
import torch, flashover

def f(x):
    return torch.nn.functional.gelu(x * 2).sum()

x = torch.randn(64, requires_grad=True)
flashover.compile(f)(x).backward()
print("went through")
"""


def minify(
    tmp_path: Path, program: str, fault: str = ASINH, *arguments: str, compiler: bool = True
) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "program.py"
    script.write_text(program)
    own = environment(tmp_path, fault) if compiler else {"FLASHOVER_CACHE_DIR": str(tmp_path / "cache")}
    env = os.environ | own
    return python("-m", "flashover", "minify", "-o", tmp_path / "repro.py", *arguments, script, env=env, timeout=300)


def run_repro(tmp_path: Path, fault: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | environment(tmp_path, fault) | {"FLASHOVER_CACHE_DIR": ""}
    return python(tmp_path / "repro.py", env=env, timeout=100)


HUNDRED = THOUSAND.replace("range(200)", "range(30)").replace("i == 117", "i == 17")
FAULTS = {  # the search is the same for each, so one has it in a thousand operators
    "a wrong number": (HUNDRED, WRONG, "AssertionError"),
    "a segmentation fault": (THOUSAND, CRASHES, ""),
    "a failure to compile": (HUNDRED, NOT_COMPILED, "BackendCompilerFailed"),
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_in_many_operators(kind: str, tmp_path: Path) -> None:
    program, fault, raised = FAULTS[kind]
    start = time.perf_counter()
    done = minify(tmp_path, program, fault)
    assert time.perf_counter() - start < 180  # 12 to 25 seconds where nothing else runs
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path}/repro.py: 1 operator, aten.asinh.default at {tmp_path}/program.py:9 ")
    text = (tmp_path / "repro.py").read_text()
    assert text.count("torch.ops.") == 1 and "torch.ops.aten.asinh.default(" in text
    faulty = run_repro(tmp_path, fault)
    assert raised in faulty.stderr and (faulty.returncode == 1 if raised else faulty.returncode < 0), faulty
    sound = run_repro(tmp_path, ASINH)
    assert sound.returncode == 0 and sound.stdout == "compiled code and eager agree\n", sound.stderr


@pytest.mark.slow  # each part that has the fault takes its whole time
def test_a_kernel_that_does_not_end(tmp_path: Path) -> None:
    program = THOUSAND.replace("range(200)", "range(115, 119)")
    done = minify(tmp_path, program, ENDLESS, "--timeout", "15", "--part-timeout", "8")
    assert done.returncode == 0 and "asinh" in done.stdout and "does not end within 8 s" in done.stdout, done


def test_a_fault_in_the_backward(tmp_path: Path) -> None:
    program = BACKWARD.replace("torch.nn.functional.gelu(x * 2)", "Odd.apply(x * 2)").replace(
        "def f(x)",
        "class Odd(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x.sin()\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return (g + 0.5).asinh()\n\ndef f(x)",
    )
    done = minify(tmp_path, program, WRONG)
    assert done.returncode == 0 and ": 1 operator, aten.asinh.default" in done.stdout, done


def test_a_sound_program_has_nothing(tmp_path: Path) -> None:
    done = minify(tmp_path, BACKWARD, compiler=False)
    assert done.returncode == 1 and "no captured graph of it was wrong" in done.stderr, done
    assert "went through" in done.stderr and not (tmp_path / "repro.py").exists()


def test_a_program_that_dies_elsewhere_shows_where(tmp_path: Path) -> None:
    done = minify(tmp_path, "import os, flashover\n\ndef falls():\n    os.abort()\n\nfalls()\n", compiler=False)
    assert done.returncode == 1 and "dies by SIGABRT" in done.stderr and "in falls" in done.stderr, done


def sample_graph() -> tuple[fx.GraphModule, list[object]]:
    aten = torch.ops.aten
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.placeholder("n")
    c = graph.get_attr("c")
    y = graph.call_function(aten.add.Tensor, (x, c), {"alpha": float("inf")})
    halves = graph.call_function(aten.split.Tensor, (y, 2, -1))
    first = graph.call_function(operator.getitem, (halves, 0))
    z = graph.call_function(aten.to.dtype, (first, torch.float64))
    w = graph.call_function(aten.full.default, ([2, 2], 1.5), {"device": torch.device("cpu"), "layout": torch.strided})
    y.meta["stack_trace"] = "program.py:3"
    graph.output((z, w))
    root = torch.nn.Module()
    root.register_buffer("c", torch.tensor([0.5, 1.0, 2.0, -1.0]))
    base = torch.arange(16.0).reshape(4, 4)
    return fx.GraphModule(root, graph), [base.t()[1:], 3]


def test_graphs_survive_a_file(tmp_path: Path) -> None:
    module, inputs = sample_graph()
    _graph_file.write(tmp_path, module, inputs, _graph_file.Pool(tmp_path), name="f")
    again, given, facts = _graph_file.read(tmp_path, _graph_file.Pool(tmp_path))
    assert facts == {"name": "f"} and given[1] == 3
    assert given[0].stride() == inputs[0].stride() and torch.equal(given[0], inputs[0])  # type: ignore[attr-defined]
    for a, b in zip(again(*given), module(*inputs), strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)
    assert [n.meta.get("stack_trace") for n in again.graph.nodes if n.name.startswith("add")] == ["program.py:3"]


def test_what_has_no_form_in_a_file_is_said(tmp_path: Path) -> None:
    module, inputs = sample_graph()
    for n in module.graph.nodes:
        if n.op == "call_function":
            n.target = torch.nn.functional.relu
    with pytest.raises(_graph_file.NotWritable, match="a call of <function relu"):
        _graph_file.write(tmp_path, module, inputs, _graph_file.Pool(tmp_path))


def test_needless_operators_are_left_out() -> None:
    """The fault needs two operators that are far apart."""
    aten = torch.ops.aten
    graph = fx.Graph()
    value = graph.placeholder("x")
    for i in range(60):
        value = graph.call_function({3: aten.sin.default, 55: aten.cos.default}.get(i, aten.neg.default), (value,))
    graph.output((value,))
    module = fx.GraphModule(torch.nn.Module(), graph)

    def shows(part: fx.GraphModule, _: list[object]) -> bool:
        return {aten.sin.default, aten.cos.default} <= {n.target for n in part.graph.nodes}

    inputs = [torch.ones(3)]
    known = _repro.values(module, inputs)
    last = _reduce.first_operator(module, known, shows)
    assert last.target is aten.cos.default
    found = _reduce.smallest_part(module, last, known, shows, time.monotonic() + 60)
    assert found is not None and len(_repro.operators(found[0])) == 2


def test_what_a_fault_takes_may_come_later() -> None:
    """It is there only where the cosine is fused with what follows."""
    aten = torch.ops.aten
    graph = fx.Graph()
    value = graph.placeholder("x")
    for i in range(60):
        value = graph.call_function(aten.cos.default if i == 2 else aten.neg.default, (value,))
    graph.output((value,))
    module = fx.GraphModule(torch.nn.Module(), graph)

    def shows(part: fx.GraphModule, _: list[object]) -> bool:
        names = [n.target for n in part.graph.nodes if n.op == "call_function"]
        return aten.cos.default in names and len(names) - names.index(aten.cos.default) > 5

    known = _repro.values(module, [torch.ones(3)])
    cos = next(n for n in graph.nodes if n.target is aten.cos.default)
    found = _reduce.smallest_part(module, cos, known, shows, time.monotonic() + 60)
    assert found is not None and len(_repro.operators(found[0])) == 6
