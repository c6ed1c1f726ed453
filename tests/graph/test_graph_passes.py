"""Every graph pass keeps the program's meaning: after each prefix of the pipeline the graph, run by the plain
evaluator, gives eager's outputs (values, strides, aliasing) and eager's written inputs."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import fuzz_programs
import in_place_programs
import pytest
import small_models
import torch
from trace_tools import Program, tensors_of, trace

import flashover
from flashover import _C

PASSES = [row["name"] for way in ("core", "schedule") for row in _C.passes() if way in row["pipelines"]]


def close(got: torch.Tensor, want: torch.Tensor, what: str, loose: bool = False) -> None:
    """loose: there are 16-bit numbers on the way, whose roundings between operators the passes may drop."""
    assert got.dtype == want.dtype, f"{what}: dtype {got.dtype} != {want.dtype}"
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)} != {tuple(want.shape)}"
    dims = [d for d in range(want.dim()) if want.shape[d] != 1]
    if want.numel():
        assert [got.stride(d) for d in dims] == [want.stride(d) for d in dims], (
            f"{what}: strides {got.stride()} != {want.stride()}"
        )
    if want.is_floating_point() or want.is_complex():
        loose = loose or want.dtype in (torch.bfloat16, torch.float16)
        wide = torch.complex128 if want.is_complex() else torch.float64
        scale = want.detach().to(wide).abs().nan_to_num(0, 0, 0).max().item() if want.numel() else 0.0
        torch.testing.assert_close(
            got.detach().to(wide),
            want.detach().to(wide),
            rtol=2e-2 if loose else 1e-4,
            atol=(3e-2 if loose else 1e-5) * max(1.0, scale),
            equal_nan=True,
            msg=lambda m: f"{what}: {m}",
        )
    else:
        assert torch.equal(got, want), f"{what}: values differ"


def storages(tensors: Sequence[torch.Tensor]) -> list[int]:
    """For each tensor the first one that shares its memory."""
    seen: dict[int, int] = {}
    return [seen.setdefault(t.untyped_storage().data_ptr(), i) if t.numel() else -1 for i, t in enumerate(tensors)]


def check_passes(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    module: torch.nn.Module | None = None,
    *,
    aliasing: bool = True,
    loose: bool = False,
) -> list[str]:
    memo: dict[int, Any] = {}
    args2, module2, fn2 = (
        copy.deepcopy((list(args), module, fn), memo) if module is not None else (copy.deepcopy(list(args)), None, fn)
    )
    eager = Program(fn2, args2, module2)
    traced = trace(Program(fn, args, module))
    pristine = copy.deepcopy([t.detach() for t in traced.inputs])
    eager_inputs = [t for _, _, t in eager.inputs()]
    expected = tensors_of(eager.fn(*eager.args))
    texts = []
    graph = traced
    for i, name in enumerate(PASSES):
        graph = graph.apply([name])
        texts.append(graph.text)
        inputs = copy.deepcopy(pristine)
        with torch.no_grad():
            got = graph.run(inputs)
        where = f"after {i}: {name}"
        assert len(got) == len(expected)
        for k, (g, e) in enumerate(zip(got, expected, strict=True)):
            close(g, e, f"{where}: output {k}", loose)
        for k, (g, e) in enumerate(zip(inputs, eager_inputs, strict=False)):
            close(g, e, f"{where}: input {k}", loose)
        if aliasing:
            for k, (g, e) in enumerate(
                zip(storages(inputs[: len(eager_inputs)] + got), storages(eager_inputs + expected), strict=True)
            ):
                # Results that eager cuts out of one memory without overlap may have memories of their own.
                assert g == e or (g > e and k >= len(eager_inputs) and e >= len(eager_inputs)), (
                    f"{where}: result {k - len(eager_inputs)} shares other memory than in eager"
                )
    return texts


@pytest.mark.parametrize("name", list(in_place_programs.PROGRAMS))
def test_mutation_programs(name: str) -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    try:
        with torch.no_grad():
            check_passes(in_place_programs.PROGRAMS[name], (x, y))
    except _C.Declined as e:
        assert name in DECLINES, f"declined: {e}"


def write_through_split(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x + 1
    for piece in (*z.chunk(2, 1), *z.split(1, 0), *z.unbind(0), *z.split([1, 3], 1)):
        piece.mul_(2)
    return z, y


def write_through_views(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = torch.zeros(2, 6, 4)
    z[:, 1:4].copy_(x)
    z[1, ::2].add_(y)
    z.transpose(0, 2)[0].mul_(3)
    z.view(-1)[3:7] = 5
    z.permute(2, 0, 1).reshape(4, 12)[1].add_(1)
    z.as_strided((3, 2), (5, 2), 4).sub_(1)
    x.t()[1].zero_()
    y[:, 1:].unsqueeze(0)[0, :2] += z[0, :2, 1:]
    return z.diagonal(0, 1, 2), z


def results_of_every_kind(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x * y
    w = z.t()
    y.add_(1)
    return (
        x,
        y.t(),
        z,
        w,
        z[1],
        z.view(-1)[2:],
        torch.ones(1, 3).expand(5, 3),
        (x + 1).unsqueeze(0).expand(2, 3, 4),
        (x - 1)[:, ::2],
        x.clone(),
        y,
    )


@pytest.mark.parametrize("program", [write_through_split, write_through_views, results_of_every_kind])
def test_views(program: Callable[..., Any]) -> None:
    with torch.no_grad():
        check_passes(program, (torch.randn(3, 4), torch.randn(3, 4)))


# What functionalize refuses, with reason; everything else must pass.
DECLINES = {"resize_shrinks", "set_storage"}


@pytest.mark.parametrize("seed", range(80))
def test_random_programs(seed: int) -> None:
    program = fuzz_programs.generate(seed)
    with torch.no_grad():
        try:
            loose = fuzz_programs.half_precision(program)
            if loose and fuzz_programs.discontinuous(program):
                pytest.skip("a dropped rounding may decide; test_fuzz_programs.py judges these, every rounding kept")
            check_passes(program.function(), program.make_inputs(), loose=loose)
        except (_C.Decline, _C.Declined) as e:
            pytest.skip(f"the trace declines: {e}")
        except RuntimeError as e:
            if "while the program is being traced" not in str(e):
                raise
            pytest.skip(f"the trace declines: {e}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["no_grad", "autocast"])
@pytest.mark.parametrize("name", small_models.MODELS)
def test_models(name: str, mode: str) -> None:
    torch.manual_seed(0)
    model, args = small_models.MODELS[name]()
    model.eval()
    run = small_models.call(model, mode)
    graph = trace(Program(run, args, model))
    expected = tensors_of(run(*args))
    checked = ""
    for pass_name in PASSES:
        graph = graph.apply([pass_name])
        if graph.text == checked:  # the pass finds nothing here
            continue
        checked = graph.text
        with torch.no_grad():
            got = graph.run(graph.inputs)
        for k, (g, e) in enumerate(zip(got, expected, strict=True)):
            close(g, e, f"after {pass_name}: output {k}", loose=mode == "autocast")


class Block(torch.nn.Module):
    """A transformer's block, of whose last one a head reads one token, or every fourth."""

    def __init__(self, causal: bool, written_out: bool) -> None:
        super().__init__()
        self.causal, self.written_out = causal, written_out
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(16) for _ in range(3))
        self.qkv, self.proj = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16, bias=False)
        self.up, self.down = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if not self.written_out:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        scores = q @ k.transpose(-1, -2) / 2
        if self.causal:
            hidden = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, -1e9)
        return scores.softmax(-1) @ v

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.proj(self.attend(q, k, v).transpose(1, 2).reshape(batch, length, 16))
        return self.norms[2](x + self.down(torch.nn.functional.silu(self.up(self.norms[1](x)))))


READ = {
    "first": lambda x: x[:, 0],
    "last": lambda x: x[:, -1],
    "last, dim kept": lambda x: x[:, -1:] * 2,
    "every fourth": lambda x: x[:, 1::4].tanh(),
    "first sequence": lambda x: x[0],
    "first and last": lambda x: (x[:, 0], x[:, -1]),
    "one channel": lambda x: x[..., 3],
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("written_out", [False, True])
@pytest.mark.parametrize("read", READ)
def test_rows_that_are_read_of_a_block(read: str, written_out: bool, causal: bool, batch: int) -> None:
    torch.manual_seed(0)
    block = Block(causal, written_out)
    with torch.no_grad():
        check_passes(lambda x: READ[read](block(x)), (torch.randn(batch, 8, 16),), block)


def test_a_head_that_reads_the_first_token_computes_one_row() -> None:
    block = Block(False, False)
    with torch.no_grad():
        texts = check_passes(lambda x: block(x)[:, 0], (torch.randn(3, 8, 16),), block)
    products = re.findall(r"f32\[(\d+),\d+\] = aten\.(?:addmm|mm)", texts[PASSES.index("hoist_slices")])
    assert products == ["24", "3", "3", "3"], "keys and values of all tokens, all else of three"


@torch.library.custom_op("flashover_tests::last_is_dense", mutates_args=())
def last_is_dense(x: torch.Tensor) -> torch.Tensor:
    assert x.stride(-1) == 1, f"strides {x.stride()}"
    return x + 1


@last_is_dense.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_operators_get_the_strides_of_their_operands_types() -> None:
    """ATen lays a sum out as its operand lies, here transposed; a norm's own kernel does not."""
    norm = torch.nn.LayerNorm(6)

    def normalized(x: torch.Tensor) -> torch.Tensor:
        return last_is_dense(norm(x.transpose(1, 2)).reshape(50, 6))

    with torch.no_grad():
        check_passes(normalized, (torch.randn(1, 6, 50),), norm)


def test_train_mode_statistics() -> None:
    model, args = small_models.MODELS["resnet18"]()
    model.train()
    with torch.no_grad():
        check_passes(model, args, model)


ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())


def test_the_list_is_in_order() -> None:
    """Each row stands below those whose results it relies on, and takes a form that is there by then."""
    rows = _C.passes()
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)
    for i, row in enumerate(rows):
        assert set(row["after"]) <= set(names[:i]), row
    for way in ("core", "backward", "few_tangents", "custom", "schedule"):
        forms = [row for row in rows if way in row["pipelines"]]
        assert forms, way
        for before, after in pairwise(forms):
            assert after["input"] == before["output"], (way, before["name"], after["name"])


def test_file_function_and_text_test_of_a_pass_share_its_name() -> None:
    names = {row["name"].removesuffix("_core") for row in _C.passes()}
    folder = ROOT / "src" / "graph" / "passes"
    assert {p.stem for p in folder.glob("*.h")} == names
    assert {p.stem for p in folder.glob("*.cpp") if not p.stem.endswith("_test")} == names
    # (What a pass asks beside the graph no text says: then it has C++ tests.)
    tested_in_cpp = {p.stem.removesuffix("_test") for p in folder.glob("*_test.cpp")}
    assert {p.stem for p in (folder / "test").glob("*.ir")} | tested_in_cpp == names
    for name in names:
        assert f"Graph {name}(" in (folder / f"{name}.h").read_text()
        if name in tested_in_cpp:
            continue
        cases = (folder / "test" / f"{name}.ir").read_text()
        assert any(name in line.split() for line in cases.splitlines() if line.startswith("run:")), name


def test_unknown_passes_cannot_be_left_out() -> None:
    with pytest.raises(flashover.exc.InvalidOptions, match="no pass 'fuse_atention'; did you mean 'fuse_attention'"):
        flashover.compile(lambda x: x, options={"disable_passes": "cse,fuse_atention"})


CAN_BE_LEFT_OUT = [row["name"] for row in _C.passes() if row["name"] not in ("functionalize", "decompose")]


@pytest.mark.parametrize("name", CAN_BE_LEFT_OUT)
def test_a_pass_that_is_left_out_does_not_run(name: str) -> None:
    texts = _C.compile_text(GRAPH, {"disable_passes": name, "cache": "False"}, texts=True).texts
    done = [stage for stage, _ in texts]
    assert name not in done and "decompose" in done


GRAPH = """graph {
  %0 : f32[4,8] = input user "x"
  %1 : f32[4,8] = aten.silu.default(%0)
  return %1
}"""


def test_the_page_of_passes_is_fresh() -> None:
    subprocess.run([sys.executable, str(ROOT / "tools" / "pass_table.py"), "--check"], check=True, timeout=120)


def test_views_of_complex_numbers_verify() -> None:
    """They are ATen's operators again in the core form, where views are prims otherwise."""
    z = torch.randn(4, 6, dtype=torch.complex64)

    def fn(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return z.t() * 2, z[1:3] + 1, z.reshape(24) * z.reshape(24)

    compiled = flashover.compile(fn, options={"verify": True, "eager_warning": False})
    for got, want in zip(compiled(z), fn(z), strict=True):
        torch.testing.assert_close(got, want)
    assert flashover.explain(fn)(z).graphs  # captured
    before = flashover.compile_stats()["eager_calls"]
    compiled(z)
    assert flashover.compile_stats()["eager_calls"] == before
