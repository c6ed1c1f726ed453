"""Triton kernels without a GPU: numerics in Triton's interpreter, compilation to sm_90 cubins, workers that die."""

# ruff: noqa: E501  programs in strings
from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from triton_interpreter import interpret

pytest.importorskip("triton")

from flashover import _C

HERE = Path(__file__).resolve().parent
EMPTY = """kernel {
  p0 = f32[1000] read
  p1 = f32[1000] write
  outer i0.1000
  vector outer
  cost 2
  stage {
    v0 = load f32 p0[i0.1000]
    v1 = store p1[i0.1000] v0
  }
}
"""


@pytest.mark.timeout(300)
def test_programs_agree_with_eager() -> None:
    wrong = {name: what for name, what in interpret(HERE / "triton_programs.py").items() if what}
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())


@pytest.mark.timeout(200)
def test_programs_compile_for_sm_90() -> None:
    import triton_programs
    from trace_tools import Program, trace

    sources = []
    for name in (
        "add",
        "f16",
        "functions",
        "layer_norm bf16",
        "argmax in parts",
        "cumsum long",
        "scatter_add",
        "embedding",
        "transpose",
    ):
        function, args = triton_programs.PROGRAMS[name]
        sources += _C.triton_program(trace(Program(function, [a.clone() for a in args])).text)["kernels"]
    for source, cubin in zip(sources, _C.triton_build(sources), strict=True):
        assert cubin["bytes"].startswith(b"\x7fELF"), source["text"] + cubin["error"]
        assert source["name"].encode() in cubin["bytes"]


@pytest.mark.timeout(120)
@pytest.mark.timeout(120)
def test_long_sums_of_many_operands_compile() -> None:
    from trace_tools import Program, trace

    def total(*xs: torch.Tensor) -> torch.Tensor:
        out = xs[0]
        for x in xs[1:]:
            out = out * x
        return out.sum(-1)

    sources = _C.triton_program(trace(Program(total, [torch.empty(400, 20_000) for _ in range(28)])).text)["kernels"]
    assert any("range(0, 20000" in s["text"] for s in sources)
    for cubin in _C.triton_build(sources):
        assert cubin["bytes"].startswith(b"\x7fELF"), cubin["error"]


def test_a_source_that_does_not_compile_says_why() -> None:
    source = _C.triton_emit(EMPTY)
    broken = {**source, "text": source["text"].replace("tl.store", "tl.stare")}
    ok, error = _C.triton_build([source, broken])
    assert ok["bytes"] and not ok["error"]
    assert not error["bytes"] and "stare" in error["error"]


@pytest.mark.timeout(120)
def test_a_dead_worker_fails_its_source_only() -> None:
    source = _C.triton_emit(EMPTY)
    deadly = {
        **source,
        "text": source["text"].replace("@triton.jit", "import os\nos.kill(os.getpid(), 9)\n@triton.jit"),
    }
    results = _C.triton_build([source, deadly, source, source])
    assert [bool(r["bytes"]) for r in results] == [True, False, True, True]
    assert "died" in results[1]["error"]
    assert _C.triton_build([source])[0]["bytes"]


@pytest.mark.timeout(120)
def test_a_dead_server_is_replaced() -> None:
    source = _C.triton_emit(EMPTY)
    _C.triton_build([source])
    os.kill(_C.triton_server_pid(), signal.SIGKILL)
    time.sleep(0.1)
    assert _C.triton_build([source])[0]["bytes"]


def children(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.timeout(120)
def test_nothing_is_left_behind_when_the_process_is_killed() -> None:
    code = (
        "import time, flashover\nfrom flashover import _C\n"
        f"s = _C.triton_emit({EMPTY!r})\n_C.triton_build([s, s])\nprint(_C.triton_server_pid(), flush=True)\ntime.sleep(100)"
    )
    p = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert p.stdout is not None
    server = int(p.stdout.readline())
    workers = children(server)
    assert workers
    p.kill()
    p.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(running(pid) for pid in [server, *workers]):
        time.sleep(0.05)
    assert not any(running(pid) for pid in [server, *workers])


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.timeout(60)
def test_a_broken_triton_is_a_reason_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "triton.py").write_text("raise ImportError('no triton today')")
    code = f"from flashover import _C\ns = _C.triton_emit({EMPTY!r})\ntry:\n    _C.triton_build([s])\nexcept _C.Declined as e:\n    print('declined:', e)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(HERE.parents[1] / "python")])}
    r = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=50)
    assert "declined:" in r.stdout and "no triton today" in r.stdout, r.stderr


def test_importing_flashover_starts_no_compiler() -> None:
    code = "import flashover, sys; print(flashover._C.triton_server_pid(), 'triton' in sys.modules)"
    r = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert r.stdout.startswith("0 "), r.stderr


@pytest.mark.parametrize(
    ("dtype", "steps", "parameter"),
    [
        ("f32", ["launch"], "fp32"),
        ("f64", ["launch"], "fp64"),
        ("i64", ["launch"], "i64"),
        ("i32", ["launch"], "i32"),
        ("b8", ["copy", "launch"], "*i1"),  # by way of memory
    ],
)
def test_a_number_on_the_cpu_goes_along_with_the_launch(dtype: str, steps: list[str], parameter: str) -> None:
    text = f"""graph {{
      %0 : f32[64]@cuda:0 = input user "a"
      %1 : {dtype}[] = input user "s"
      %2 : f32[64]@cuda:0 = aten.mul.Tensor(%0, %1)
      return %2
    }}"""
    program = _C.triton_program(text, to_device=False)
    assert [s["kind"] for s in program["steps"]] == steps
    assert parameter in program["kernels"][0]["signature"]


def test_kernels_that_take_numbers_compile() -> None:
    text = """graph {
      %0 : f32[64]@cuda:0 = input user "a"
      %1 : f64[] = input user "s"
      %2 : i64[] = input user "n"
      %3 : f32[64]@cuda:0 = aten.mul.Tensor(%0, %1)
      %4 : f32[64]@cuda:0 = aten.add.Tensor(%3, %2, 1)
      return %4
    }"""
    (source,) = _C.triton_program(text, to_device=False)["kernels"]
    (cubin,) = _C.triton_build([source])
    assert cubin["bytes"], cubin["error"]


UNARY = [
    "abs", "neg", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin",
    "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv",
    "lgamma", "digamma", "i0", "sigmoid", "relu", "sign", "floor", "ceil", "round", "trunc", "signbit", "isnan", "isinf",
]  # fmt: skip
BINARY = {
    "div": "Tensor(%0, %1)", "fmod": "Tensor(%0, %1)", "remainder": "Tensor(%0, %1)", "floor_divide": "default(%0, %1)",
    "atan2": "default(%0, %1)", "hypot": "default(%0, %1)", "copysign": "Tensor(%0, %1)", "fmin": "default(%0, %1)",
    "nextafter": "default(%0, %1)", "minimum": "default(%0, %1)", "pow": "Tensor_Tensor(%0, %1)",
}  # fmt: skip
NUMBERS = {"fmod": "Scalar(%0, 1.5)", "remainder": "Scalar(%0, -1.5)", "floor_divide": "default(%0, 1.5)"}


@pytest.mark.timeout(200)
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16"])
def test_every_function_compiles(dtype: str) -> None:
    sources = []
    for op, call in [*((u, "default(%0)") for u in UNARY), *BINARY.items(), *NUMBERS.items()]:
        result = "b8" if op in ("signbit", "isnan", "isinf") else dtype
        text = f"""graph {{
          %0 : {dtype}[64]@cuda:0 = input user "a"
          %1 : {dtype}[64]@cuda:0 = input user "b"
          %2 : {result}[64]@cuda:0 = aten.{op}.{call}
          return %2
        }}"""
        sources += _C.triton_program(text, to_device=False)["kernels"]
    assert len(sources) > 50
    for source, cubin in zip(sources, _C.triton_build(sources), strict=True):
        assert cubin["bytes"], source["text"] + cubin["error"]


WIDE = """kernel {
  p0 = f32[2457600000] read
  p1 = f32[300000] write
  outer i0.300000
  acc a0 = sum f32
  vector outer
  cost 2
  stage j0.8192 {
    v0 = load f32 p0[i0.300000 + 300000*j0.8192]
    v1 = reduce a0 v0
  }
  stage {
    v0 = acc f32 a0
    v1 = store p1[i0.300000] v0
  }
}
"""


def test_indices_of_large_tensors_are_wide() -> None:
    text = _C.triton_emit(WIDE)["text"]
    (row,) = (line for line in text.splitlines() if " = start + " in line)
    assert row.endswith(".to(tl.int64)") and "tl.program_id(0).to(tl.int64)" in text


MATRIX_AND_VECTOR = """kernel {{
  p0 = {dtype}[{size}] read
  p1 = f32[{length}] read
  p2 = f32[{rows}] write
  outer i0.{rows}
  acc a0 = sum f32
  vector inner
  cost 1001
  stage j0.{length} {{
    v0 = load {dtype} p0[{length}*i0.{rows} + j0.{length}]
    v1 = convert f32 v0
    v2 = load f32 p1[j0.{length}]
    v3 = mul f32 v1 v2
    v4 = reduce a0 v3
  }}
  stage {{
    v0 = acc f32 a0
    v1 = store p2[i0.{rows}] v0
  }}
}}
"""


@pytest.mark.parametrize("rows", [2, 100, 5000, 100_000])
def test_ranges_are_powers_of_two(rows: int) -> None:
    """Triton takes no others, whatever the length of a matrix' rows."""
    for length in (2, 3, 24, 100, 196, 300, 784, 1000, 1536, 3000, 5000):
        for dtype in ("bf16", "u8"):
            kernel = MATRIX_AND_VECTOR.format(dtype=dtype, size=rows * length, rows=rows, length=length)
            text = _C.triton_emit(kernel)["text"]
            ranges = [int(n) for n in re.findall(r"tl\.arange\(0, (\d+)\)", text)]
            assert ranges and all(n & (n - 1) == 0 for n in ranges), (length, dtype, ranges)


def test_torch_is_not_loaded_by_workers() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import _triton_worker as w; w.load_compiler(); print('torch' in sys.modules)"
    r = subprocess.run(
        [sys.executable, "-c", code, str(Path(_C.__file__).parent)], capture_output=True, text=True, timeout=50
    )
    assert r.stdout.strip() == "False", r.stderr


assert torch  # the extension needs it loaded


def test_computations_on_the_cpu_beside_the_gpu_stay_with_eager() -> None:
    text = """graph {
      %0 : f32[64]@cuda:0 = input user "a"
      %1 : f32[] = input user "s"
      %2 : f32[3] = input user "c"
      %3 : f32[] = aten.exp.default(%1)
      %4 : f32[64]@cuda:0 = aten.mul.Tensor(%0, %3)
      %5 : f32[3] = aten.sigmoid.default(%2)
      return %4
      return %5
    }"""
    program = _C.triton_program(text, to_device=False)
    assert [s["op"] or s["kind"] for s in program["steps"] if s["kind"] != "release"] == [
        "aten.exp.default", "launch", "aten.sigmoid.default"
    ]  # fmt: skip


EMBEDDING = """graph {
  %0 : f32[40,8]@cuda:0 = input user "grad"
  %1 : i64[40]@cuda:0 = input user "index"
  %2 : f32[16,8]@cuda:0 = aten.embedding_dense_backward.default(%0, %1, 16, 3, false)
  return %2
}"""


def test_sums_in_no_fixed_order_are_not_for_deterministic_programs() -> None:
    assert all(s["kind"] == "launch" for s in _C.triton_program(EMBEDDING, to_device=False)["steps"])
    steps = _C.triton_program(EMBEDDING, to_device=False, deterministic=True)["steps"]
    assert [s["op"] for s in steps if s["kind"] != "release"] == ["aten.embedding_dense_backward.default"]


def test_atomic_sums_compile() -> None:
    sources = _C.triton_program(EMBEDDING, to_device=False)["kernels"]
    assert any("tl.atomic_add" in s["text"] for s in sources)
    assert all(c["bytes"] for c in _C.triton_build(sources))


def test_large_temporaries_do_not_lie_beside_what_operators_allocate() -> None:
    """A kernel's result is gone when the products behind it take most."""
    text = """graph {
      %0 : f16[4096,4096]@cuda:0 = input user "x"
      %1 : f16[4096,4096]@cuda:0 = aten.sigmoid.default(%0)
      %2 : f16[4096,4096]@cuda:0 = aten.mm.default(%1, %0)
      %3 : f16[4096,4096]@cuda:0 = aten.mm.default(%2, %0)
      %4 : f16[4096,4096]@cuda:0 = aten.mm.default(%3, %2)
      return %4
    }"""
    program = _C.triton_program(text, to_device=False)
    assert program["arena_bytes"] == 0
    assert [s["op"] or s["kind"] for s in program["steps"]] == [
        "aten.empty_strided.default", "launch", "aten.mm.default", "release", "aten.mm.default", "aten.mm.default", "release"
    ]  # fmt: skip


def test_a_padded_product_leaves_by_parts() -> None:
    text = """graph {
      %0 : f16[8192,64]@cuda:0 = input user "x"
      %1 : f16[30522,64]@cuda:0 = input param "w"
      %2 : f16[64,30522]{1,64}@cuda:0 = aten.t.default(%1)
      %3 : f16[8192,30522]@cuda:0 = aten.mm.default(%0, %2)
      %4 : f16[16,512,30522]@cuda:0 = aten.view.default(%3, [16, 512, 30522])
      return %4
    }"""
    program = _C.triton_program(text, to_device=False)
    steps = [s["op"] or s["kind"] for s in program["steps"]]
    assert steps == ["aten.mm.default", "launch", "release"] * 16  # 512 rows at a time: 30 MiB
    assert program["arena_bytes"] == 0
    odd = text.replace("8192", "1300").replace("16, 512, 30522", "2, 650, 30522").replace("16,512,30522", "2,650,30522")
    products = [s for s in _C.triton_program(odd, to_device=False)["steps"] if s["op"] == "aten.mm.default"]
    assert len(products) == 3


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_what_is_rounded_to_half_precision_is_computed_fast(approximate: str) -> None:
    """Also where its column sums, which go on in f32, are part of the kernel."""
    text = f"""graph {{
      %0 : f16[4096,256]@cuda:0 = input user "gradient"
      %1 : f16[4096,256]@cuda:0 = input user "x"
      %2 : f16[4096,256]@cuda:0 = aten.gelu_backward.default(%0, %1, "{approximate}")
      %3 : f16[256]@cuda:0 = aten.sum.dim_IntList(%2, [0], false, None)
      return %3
      return %2
    }}"""

    def source(text: str) -> str:
        return "".join(k["text"] for k in _C.triton_program(text, to_device=False)["kernels"])

    fast = "lib.fast_erf(" if approximate == "none" else "lib.fast_tanh("
    assert "tl.sum(" in source(text) and fast in source(text)
    assert "fast_" not in source(text.replace("f16", "f32"))


def peak_of(program: dict[str, Any]) -> int:
    """Bytes beside the inputs, by the plan's steps."""
    sizes = {"f32": 4, "bf16": 2, "f16": 2, "i64": 8}
    tensors, alive, most = program["tensors"], {}, 0

    def bytes_of(t: dict[str, Any]) -> int:
        return (1 + sum((n - 1) * s for n, s in zip(t["sizes"], t["strides"], strict=True))) * sizes[t["dtype"]]

    for step in program["steps"]:
        for t in step["reads"] if step["kind"] == "release" else []:
            alive.pop(t, None)
        for t in step["writes"]:
            if t >= 0 and tensors[t]["storage"] == "extern":
                alive[t] = bytes_of(tensors[t])
        most = max(most, sum(alive.values()))
    return most + program["arena_bytes"] + sum(bytes_of(t) for t in tensors if t["storage"] in ("output", "frozen"))


def autocast_layers(layers: int, width: int, rows: int) -> str:
    lines = [f'%0 : f32[{rows},{width}]@cuda:0 = input user "x"']
    weight = [f'%{i + 1} : f32[{width},{width}]@cuda:0 = input param "w{i}"' for i in range(layers)]
    at, now, body = layers + 1, 0, []
    for i in range(layers):
        body += [
            f"%{at} : f16[{rows},{width}]@cuda:0 = aten._to_copy.default(%{now}, f16, None, None, None, false, None)",
            f"%{at + 1} : f16[{width},{width}]@cuda:0 = aten._to_copy.default(%{i + 1}, f16, None, None, None, false, None)",
            f"%{at + 2} : f16[{rows},{width}]@cuda:0 = aten.mm.default(%{at}, %{at + 1})",
            f"%{at + 3} : f32[{rows},{width}]@cuda:0 = aten._to_copy.default(%{at + 2}, f32, None, None, None, false, None)",
            f"%{at + 4} : f32[{rows},{width}]@cuda:0 = aten.sin.default(%{at + 3})",
        ]
        now, at = at + 4, at + 5
    return "graph {\n" + "\n".join([*lines, *weight, *body, f"return %{now}"]) + "\n}"


def test_what_eager_needs() -> None:
    # Three casts that autocast keeps, of 2 MiB each, and at the end the product of 8 KiB, its f32 copy and the sine.
    assert _C.eager_bytes(autocast_layers(3, 1024, 4)) == 3 * (2 << 20) + (16 << 10) + (16 << 10)
    view = """graph {
      %0 : f32[64]@cuda:0 = input user "x"
      %1 : f32[64]@cuda:0 s1 = aten.exp.default(%0)
      %2 : f32[8,8]@cuda:0 s1 = aten.view.default(%1, [8, 8])
      %3 : f32[8,8]@cuda:0 s2 = aten.sin.default(%2)
      %4 : f32[8,8]@cuda:0 s3 = aten.sin.default(%3)
      return %4
    }"""
    assert _C.eager_bytes(view) == 2 * 256


def test_a_plan_needs_no_more_than_eager() -> None:
    """The last product's padded parts lie beside the result: some casts are made in the call, not kept."""
    text = """graph {
      %0 : f32[1024,1024]@cuda:0 = input user "x"
      %1 : f32[1024,1024]@cuda:0 = input param "v"
      %2 : f32[50257,1024]@cuda:0 = input param "w"
      %3 : f32[1024,8192]@cuda:0 = input param "u"
      %4 : f32[8192,1024]@cuda:0 = input param "t"
      %10 : f16[1024,1024]@cuda:0 = aten._to_copy.default(%0, f16, None, None, None, false, None)
      %11 : f16[1024,1024]@cuda:0 = aten._to_copy.default(%1, f16, None, None, None, false, None)
      %12 : f16[1024,1024]@cuda:0 = aten.mm.default(%10, %11)
      %13 : f16[1024,8192]@cuda:0 = aten._to_copy.default(%3, f16, None, None, None, false, None)
      %14 : f16[1024,8192]@cuda:0 = aten.mm.default(%12, %13)
      %15 : f16[8192,1024]@cuda:0 = aten._to_copy.default(%4, f16, None, None, None, false, None)
      %16 : f16[1024,1024]@cuda:0 = aten.mm.default(%14, %15)
      %17 : f16[50257,1024]@cuda:0 s1 = aten._to_copy.default(%2, f16, None, None, None, false, None)
      %18 : f16[1024,50257]{1,1024}@cuda:0 s1 = aten.t.default(%17)
      %19 : f16[1024,50257]@cuda:0 s2 = aten.mm.default(%16, %18)
      %20 : f16[2,512,50257]@cuda:0 s2 = aten.view.default(%19, [2, 512, 50257])
      return %20
    }"""
    program = _C.triton_program(text, to_device=False)
    given = (1024 * 1024 * 2 + 50257 * 1024 + 2 * 8192 * 1024) * 4
    eager = _C.eager_bytes(text)
    assert peak_of(program) <= eager + (eager + given) // 128
    made = [s for s in program["frozen_steps"] if s["kind"] == "launch"]
    assert 2 <= len(made) < 4  # the vocabulary's copy is needed at the peak: it stays
    # Without the parts there is room for all.
    assert len(_C.triton_program(autocast_layers(4, 1024, 64), to_device=False)["frozen_steps"]) == 4


def test_a_convolution_that_needs_more_than_eager_does_its_batch_in_parts() -> None:
    """cuDNN copies what lies channels first; the weight's cast that eager makes later is kept from call to call."""
    text = """graph {
      %0 : f16[64,72,112,112]@cuda:0 = input user "x"
      %1 : f16[72,24,3,3]@cuda:0 = input user "c"
      %2 : f32[72,200000]@cuda:0 = input param "w"
      %3 : f16[64,72,56,56]@cuda:0 = aten.convolution.default(%0, %1, None, [2, 2], [1, 1], [1, 1], false, [0, 0], 3)
      %4 : f16[64,72]@cuda:0 = aten.mean.dim(%3, [2, 3], false, None)
      %5 : f16[72,200000]@cuda:0 = aten._to_copy.default(%2, f16, None, None, None, false, None)
      %6 : f16[64,200000]@cuda:0 = aten.mm.default(%4, %5)
      return %6
    }"""

    def calls(text: str) -> list[tuple[str, Any]]:
        steps = _C.triton_program(text, to_device=False)["steps"]
        return [(s["op"], s["args"][-1]) for s in steps if "convolution" in s["op"]]

    ((op, parts),) = calls(text)
    assert op == "flashover.convolution_in_parts.default"
    assert parts == 2
    small = text.replace("[64,", "[2,")
    assert [op for op, _ in calls(small)] == ["aten.convolution.default"]
    assert [op for op, _ in calls(text.replace("param", "user"))] == ["aten.convolution.default"]


def test_what_operators_read_in_half_precision_is_stored_once() -> None:
    """The sum that goes on beside a product: rounded, as in eager, not a second time in f32."""
    text = """graph {
      %0 : f16[512,512]@cuda:0 = input user "x"
      %1 : f16[512,512]@cuda:0 = aten.mm.default(%0, %0)
      %2 : f16[512,512]@cuda:0 = aten.add.Tensor(%1, %0, 1)
      %3 : f16[512,512]@cuda:0 = aten.mm.default(%2, %0)
      %4 : f16[512,512]@cuda:0 = aten.add.Tensor(%3, %2, 1)
      %5 : f16[512,512]@cuda:0 = aten.mm.default(%4, %0)
      %6 : f16[512,512]@cuda:0 = aten.add.Tensor(%5, %4, 1)
      return %6
    }"""
    program = _C.triton_program(text, to_device=False)
    assert {t["dtype"] for t in program["tensors"]} == {"f16"}
    assert sum(len(s["writes"]) for s in program["steps"] if s["kind"] == "launch") == 3


def test_a_norms_backward_goes_over_its_rows_once() -> None:
    """Also where the group that needs the first sum began with something else."""
    text = """graph {
      %0 : f16[4096,768]@cuda:0 = input user "gradient"
      %1 : f32[4096,768]@cuda:0 = input user "x"
      %2 : f32[768]@cuda:0 = input user "w"
      %3 : f32[4096,1]@cuda:0 = input user "mean"
      %4 : f32[4096,1]@cuda:0 = input user "rstd"
      %5 : f32[4096,768]@cuda:0 = aten._to_copy.default(%0, f32, None, None, None, false, None)
      %6 : f32[4096,768]@cuda:0 = aten.sub.Tensor(%1, %3, 1)
      %7 : f32[4096,768]@cuda:0 = aten.mul.Tensor(%6, %4)
      %8 : f16[4096,768]@cuda:0 = aten._to_copy.default(%7, f16, None, None, None, false, None)
      %9 : f32[4096,768]@cuda:0, %10 : f32[768]@cuda:0, %11 : f32[768]@cuda:0 = aten.native_layer_norm_backward.default(%5, %1, [768], %3, %4, %2, %2, b[true, true, true])
      return %8
      return %9
      return %10
      return %11
    }"""
    program = _C.triton_program(text, to_device=False)
    kernels = [program["kernels"][s["kernel"]]["text"] for s in program["steps"]]
    assert len(kernels) == 3  # rows, both sums of columns in parts, and what these parts come to
    assert kernels[0].count("tl.sum(") == 2 and kernels[0].count("tl.store(") == 2


def test_a_copy_and_its_transpose_are_one_memory() -> None:
    """A view that is copied for one operator is a window for the next."""
    text = """graph {
      %0 : f16[8,4,32,16]@cuda:0 = input user "dq"
      %1 : f16[8,4,32,16]@cuda:0 = input user "dk"
      %2 : f16[128,64]@cuda:0 = input user "w"
      %3 : f16[256,64]@cuda:0 = input user "x"
      %4 : f16[2,8,4,32,16]@cuda:0 = aten.stack.default(%[%0, %1], 0)
      %5 : f16[8,32,2,4,16]{2048,16,16384,512,1}@cuda:0 = aten.permute.default(%4, [1, 3, 0, 2, 4])
      %6 : f16[256,128]@cuda:0 = aten.reshape.default(%5, [256, 128])
      %7 : f16[256,64]@cuda:0 = aten.mm.default(%6, %2)
      %8 : f16[128,256]{1,128}@cuda:0 = aten.t.default(%6)
      %9 : f16[128,64]@cuda:0 = aten.mm.default(%8, %3)
      return %7
      return %9
    }"""
    program = _C.triton_program(text, to_device=False)
    assert [s["op"] or (s["kind"], len(s["writes"])) for s in program["steps"] if s["kind"] != "release"] == [
        ("launch", 1), "aten.mm.default", "aten.mm.default"
    ]  # fmt: skip


def test_statistics_of_a_batch_are_two_kernels() -> None:
    """Parts of both sums in one pass, then all that follows from the parts."""
    text = """graph {
      %0 : f16[64,64,56,56]{200704,1,3584,64}@cuda:0 = input user "x"
      %1 : f32[64]@cuda:0 = input user "w"
      %2 : f32[64]@cuda:0 = input user "b"
      %3 : f16[64,64,56,56]{200704,1,3584,64}@cuda:0, %4 : f32[64]@cuda:0, %5 : f32[64]@cuda:0 = aten._native_batch_norm_legit.no_stats(%0, %1, %2, true, 0.1, 0.001)
      return %3
      return %4
      return %5
    }"""
    program = _C.triton_program(text, to_device=False)
    kernels = [program["kernels"][s["kernel"]]["text"] for s in program["steps"]]
    assert len(kernels) == 3 and kernels[0].count("tl.sum(") == 2


def test_what_is_widened_is_stored_narrow() -> None:
    """A gradient in 16 bits that several kernels read in f32."""
    text = """graph {
      %0 : f16[4096,768]@cuda:0 = input user "x"
      %1 : f16[4096,768]@cuda:0 = input user "y"
      %2 : f16[4096,768]@cuda:0 = aten.threshold_backward.default(%0, %1, 0)
      %3 : f32[4096,768]@cuda:0 = aten._to_copy.default(%2, f32, None, None, None, false, None)
      %4 : f32[768]@cuda:0 = aten.sum.dim_IntList(%3, [0], false, None)
      %5 : f32[4096,768]@cuda:0 = aten.mul.Tensor(%3, %4)
      %6 : f16[4096,768]@cuda:0 = aten._to_copy.default(%5, f16, None, None, None, false, None)
      return %6
    }"""
    program = _C.triton_program(text, to_device=False)
    large = {t["dtype"] for t in program["tensors"] if t["sizes"] == [4096, 768]}
    assert large == {"f16"}


def test_what_is_read_twice_is_stored_as_in_eager() -> None:
    """A result in 16 bits that a mean and a product read (squeeze and excitation): f32 is twice the memory."""
    text = """graph {
      %0 : f16[64,96,56,56]{301056,1,5376,96}@cuda:0 = input user "x"
      %1 : f16[64,96,1,1]@cuda:0 = input user "gate"
      %2 : f16[64,96,56,56]{301056,1,5376,96}@cuda:0 = aten.silu.default(%0)
      %3 : f16[64,96,1,1]@cuda:0 = aten.mean.dim(%2, [2, 3], true, None)
      %4 : f16[64,96,1,1]@cuda:0 = aten.mul.Tensor(%3, %1)
      %5 : f16[64,96,56,56]{301056,1,5376,96}@cuda:0 = aten.mul.Tensor(%2, %4)
      return %5
    }"""
    program = _C.triton_program(text, to_device=False)
    assert {t["dtype"] for t in program["tensors"] if t["sizes"] == [64, 96, 56, 56]} == {"f16"}


def test_an_odd_inner_dimension_is_padded() -> None:
    """Where the operand is put together: rows of 415 numbers are slow, and zeros behind them cost nothing."""
    text = """graph {
      %0 : f16[2048,64]@cuda:0 = input user "x"
      %1 : f16[2048,351]@cuda:0 = input user "y"
      %2 : f16[1024,415]@cuda:0 = input param "w"
      %3 : f16[1024]@cuda:0 = input param "b"
      %4 : f16[2048,415]@cuda:0 = aten.cat.default(%[%0, %1], 1)
      %5 : f16[415,1024]{1,415}@cuda:0 = aten.t.default(%2)
      %6 : f16[2048,1024]@cuda:0 = aten.addmm.default(%3, %4, %5, 1, 1)
      %7 : f16[2048,1024]@cuda:0 = aten.relu.default(%6)
      return %7
    }"""
    program = _C.triton_program(text, to_device=False)
    steps = [s["op"] or s["kind"] for s in program["steps"] if s["kind"] != "release"]
    assert steps[-1] == "aten._addmm_activation.default" and len(steps) <= 4
    assert not any(t["sizes"] == [2048, 415] for t in program["tensors"])


def test_kernels_write_over_what_an_operator_returned() -> None:
    text = """graph {
      %0 : f32[64,64]@cuda:0 = input user "x"
      %1 : f32[64,64]@cuda:0 = aten.mm.default(%0, %0)
      %2 : f32[64,64]@cuda:0 = aten.relu.default(%1)
      %3 : f32[64,64]@cuda:0 = aten.mm.default(%2, %2)
      %4 : f32[64,64]@cuda:0 = aten.exp.default(%3)
      %5 : f32[64,64]@cuda:0 = aten.mm.default(%4, %3)
      return %5
    }"""
    program = _C.triton_program(text, to_device=False)
    tensors = program["tensors"]
    relu, exp = (tensors[s["writes"][0]] for s in program["steps"] if s["kind"] == "launch")
    first = next(s for s in program["steps"] if s["op"] == "aten.mm.default")["writes"][0]
    assert (relu["storage"], relu["index"]) == ("view", first)
    assert exp["storage"] == "arena"  # %3 is read again
