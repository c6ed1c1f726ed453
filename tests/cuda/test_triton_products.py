"""Products with what follows them in one kernel: right in the interpreter, built for sm_90, chosen by measuring."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from triton_interpreter import interpret

pytest.importorskip("triton")

from trace_tools import Program, trace

import flashover
from flashover import _C

HERE = Path(__file__).resolve().parent
FUSED = {
    "gelu": 1, "relu and more": 1, "no bias, silu": 1, "odd sizes": 1, "one row": 1, "residual": 1,
    "residual in f32": 1, "a row for all": 1, "a column for all": 1, "batch": 1, "batch with a row for each": 1,
    "two results": 1, "gate": 1,
    "two layers": 2, "transposed": 1, "a long sum": 1, "many programs": 1, "mixed": 1, "not a number": 1,
    "returned too": 0, "reduced": 0, "turned": 0, "flipped": 0, "f32": 0, "scaled": 0, "operand overwritten": 0,
    "silu before": 1, "before and behind": 1, "a cast before": 1, "a gate before": 1, "half of a row before": 1,
    "small weights": 1, "a row's scale before": 1, "turned before": 1, "exponential of nothing": 1, "batched": 1,
    "batched, several axes": 1, "batched scores": 1, "batched before": 1, "batched before and behind": 1,
    "read twice": 0,
}  # fmt: skip


@pytest.mark.timeout(300)
def test_products_agree_with_eager() -> None:
    got = interpret(HERE / "triton_products.py")
    assert not {k: v[0] for k, v in got.items() if v[0]}
    assert {k: v[1] for k, v in got.items()} == FUSED


@pytest.mark.timeout(300)
def test_products_compile_for_sm_90() -> None:
    x, w, b = torch.randn(256, 128).bfloat16(), torch.randn(512, 128).bfloat16(), torch.randn(512).bfloat16()
    gelu = torch.nn.functional.gelu
    traced = trace(Program(lambda x, w, b: gelu(torch.nn.functional.linear(x, w, b)), [x, w, b]))
    sources = []
    for tile in ([128, 128, 64], [64, 64, 64]):
        (k,) = (k for k in _C.triton_program(traced.text, tile=tile)["kernels"] if k["name"].startswith("addmm_"))
        sources.append({**k, "warps": 4, "stages": 3})
    small, large = (s["text"] for s in sources)
    assert small != large and "tl.dot" in small and "m <" not in small  # 256 and 512 need no masks
    for c in _C.triton_build(sources):
        assert c["bytes"] and not c["error"], c["error"]
        assert c["shared"] > 2 * 2 * 64 * 64  # stages of loads in flight


@pytest.mark.timeout(300)
def test_kernels_before_products_compile_for_sm_90() -> None:
    silu, gelu = torch.nn.functional.silu, torch.nn.functional.gelu
    h, w, q = (torch.randn(*s).bfloat16() for s in ((256, 256), (512, 128), (4, 100, 72)))
    gate = trace(Program(lambda h, w: gelu((silu(h[:, :128]) * h[:, 128:]) @ w.t()), [h, w]))
    small = trace(Program(lambda h, w: h @ w.bfloat16(), [h, torch.randint(-9, 9, (256, 512)).to(torch.int8)]))
    scores = trace(Program(lambda q, s: torch.bmm(q * s, q.transpose(1, 2)) * 0.5, [q, q[:, :, :1].clone()]))
    sources = []
    for traced in (gate, small, scores):
        for tile in ([128, 128, 64], [64, 32, 64]):
            for k in _C.triton_program(traced.text, tile=tile)["kernels"]:
                if k["name"].startswith("of_"):
                    sources.append({**k, "warps": 4, "stages": 3})
    assert len(sources) == 6
    for s, c in zip(sources, _C.triton_build(sources), strict=True):
        assert c["bytes"] and not c["error"], s["text"] + c["error"]


@pytest.mark.timeout(300)
def test_what_is_measured_and_chosen_are_whole_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """graph {
      %0 : f16[64,48]@cuda:0 = input user "x"
      %1 : f16[48,80]@cuda:0 = input user "w"
      %9 : f16[80,80]@cuda:0 = input user "v"
      %2 : f16[64,48]@cuda:0 = aten.silu.default(%0)
      %3 : f16[64,80]@cuda:0 = aten.mm.default(%2, %1)
      %4 : f16[64,80]@cuda:0 = aten.gelu.default(%3, "none")
      %5 : f16[80,80]@cuda:0 = aten.cos.default(%9)
      %6 : f16[64,80]@cuda:0 = aten.mm.default(%4, %5)
      return %6
    }"""
    options = {"max_autotune": "True", "cache": "False"}
    made = _C.plan_for_gpu(text, options, texts=True)
    notes = dict(made["texts"])["products"]
    assert made["extern_calls"] == 0 and notes.count(": one kernel\n") == 2 and "not measured" not in notes
    for tile in ("0", "2", "-1"):
        monkeypatch.setenv("FLASHOVER_PRODUCT_TILE", tile)
        assert _C.plan_for_gpu(text, options)["extern_calls"] == (2 if tile == "-1" else 0)


def test_the_modes_ask_for_it() -> None:
    modes = flashover.options.MODES
    assert modes["max-autotune"] == {"max_autotune": True, "cuda_graphs": True}
    assert modes["max-autotune-no-cudagraphs"] == {"max_autotune": True}
    assert "max_autotune" not in modes["default"]


def test_libraries_are_measured_on_the_cpu(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)).eval()
    x = torch.randn(64, 256)
    state = torch.get_rng_state()
    with torch.no_grad():
        e = flashover.explain(model, options={"max_autotune": True, "cache_dir": str(tmp_path)})(x)
        assert torch.equal(torch.get_rng_state(), state)
        text = e.graphs[0]["texts"]["libraries"]
        assert text.count(" us\n") >= 2 and "chosen: " in text
        fast = flashover.compile(model, mode="max-autotune")
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
        noisy = torch.nn.Sequential(*model, torch.nn.Dropout(0.5))  # draws when it is run to be measured
        torch.manual_seed(1)
        got = flashover.compile(noisy, options={"max_autotune": True, "cache_dir": str(tmp_path)})(x)
        torch.manual_seed(1)
        torch.testing.assert_close(got, noisy(x), rtol=1e-4, atol=1e-4)
        plain = flashover.explain(model)(x)
        assert "libraries" not in plain.graphs[0]["texts"]


# ---- products of groups: as mixtures of experts use them

KINDS = {"flat, each": (2, 3), "flat, flat": (2, 2), "each, each": (3, 3), "each, flat": (3, 2)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [16, 13])
def test_grouped_products(kind: str, dtype: torch.dtype, columns: int) -> None:
    """Whole, also in training, with eager's padded rows."""
    ranks = KINDS[kind]
    ends = torch.tensor([3, 3, 20, 24], dtype=torch.int32) if ranks != (3, 3) else None
    between = 24 if ranks == (2, 2) else 16
    rows, groups = (24 if ranks == (2, 3) else 8), (4,)
    width = 24 if ranks == (3, 2) else columns
    a = torch.randn(*groups * (ranks[0] == 3), rows, between)
    b = torch.randn(*groups * (ranks[1] == 3), width, between).transpose(-2, -1)
    a, b = a.to(dtype), b.to(dtype)

    def fn(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.grouped_mm(a, b, offs=ends)
        return y, (y.float() * 2).sin()

    fast = flashover.compile(fn, fullgraph=True)
    with torch.no_grad():
        got, want = fast(a, b), fn(a, b)
    for g, w in zip(got, want, strict=True):
        assert g.stride() == w.stride()
        torch.testing.assert_close(g, w, rtol=2e-2, atol=2e-2)
    if columns != 16:
        return  # (eager's own gradients need whole lines)
    results = []
    for call in (fast, fn):
        x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
        call(x, y)[1].sum().backward()
        results.append((x.grad, y.grad))
    for g, w in zip(*results, strict=True):
        assert g.stride() == w.stride()
        torch.testing.assert_close(g, w, rtol=5e-2, atol=5e-2)


# ---- weights of eight bits


def unpacked(rows: int) -> str:
    return f"""graph {{
      %0 : bf16[{rows},256]@cuda:0 = input user "x"
      %1 : i8[512,256]@cuda:0 = input user "w"
      %2 : bf16[512]@cuda:0 = input user "scale"
      %3 : i8[256,512]{{1,256}}@cuda:0 = aten.t.default(%1)
      %4 : bf16[256,512]{{1,256}}@cuda:0 = aten._to_copy.default(%3, bf16, None, None, None, false, None)
      %5 : bf16[{rows},512]@cuda:0 = aten.mm.default(%0, %4)
      %6 : bf16[{rows},512]@cuda:0 = aten.mul.Tensor(%5, %2)
      return %6
    }}"""


def test_products_of_few_rows_unpack_their_weights() -> None:
    """In every mode and unmeasured: one kernel, which reads the weights once, as they lie."""
    for rows, calls in ((8, 0), (32, 0), (33, 1)):
        made = _C.plan_for_gpu(unpacked(rows), {"cache": "False"}, texts=True)
        assert made["extern_calls"] == calls
        assert dict(made["texts"])["plan"].count("  launch ") == 1 + calls
