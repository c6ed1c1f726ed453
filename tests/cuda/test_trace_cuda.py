"""Tracing for a CUDA device on a machine that has none: stand-in tensors with CUDA keys and no data."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpu_models
import pytest
import torch
import torch.nn.functional as F
from trace_tools import Program, trace

import flashover
from flashover import _C


def cuda(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return _C.cuda_stand_in(torch.empty(shape, dtype=dtype))


def cuda_module(module: torch.nn.Module) -> torch.nn.Module:
    for m in module.modules():
        for name, p in list(m._parameters.items()):
            if p is not None:
                m._parameters[name] = torch.nn.Parameter(_C.cuda_stand_in(p.detach()), requires_grad=False)
        for name, b in list(m._buffers.items()):
            if b is not None:
                m._buffers[name] = _C.cuda_stand_in(b)
    return module


def traced(fn: Callable[..., Any], args: Sequence[Any], module: torch.nn.Module | None = None) -> _C.Traced:
    with torch.no_grad():
        t = trace(Program(fn, args, module))
    t.verify()
    return t


def test_results_and_factories_are_on_the_device() -> None:
    t = traced(lambda x: x * 2 + torch.arange(8, device="cuda") - torch.ones(8, device=x.device), [cuda(4, 8)])
    assert t.output_types == ["f32[4,8]@cuda:0"] and not t.python_meta_ops
    assert "i64, None, cuda:0" in t.text  # not "cuda": the current device is guarded


def test_numbers_and_python_data() -> None:
    t = traced(lambda x: 2.0 - x + torch.tensor(3.0) + torch.tensor([1.0, 2.0]).to("cuda:0"), [cuda(2)])
    assert t.output_types == ["f32[2]@cuda:0"]
    assert 'constant "constant0"' in t.text and "aten._to_copy" in t.text


FIRST_USE_OF_CUDA = """
import torch, flashover
def moved(x):
    return x.cuda() * 2
for call in (moved, flashover.compile(moved, fullgraph=True)):
    try:
        call(torch.randn(3))
    except (RuntimeError, AssertionError) as e:
        print(type(e).__name__)
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_starting_the_driver_is_no_part_of_the_program() -> None:
    """In a process of its own: with stand-ins torch starts no driver."""
    r = subprocess.run([sys.executable, "-c", FIRST_USE_OF_CUDA], capture_output=True, text=True, timeout=100)
    eager, *compiled = r.stdout.split()
    assert compiled == [eager], r.stdout + r.stderr


def test_to_and_fro() -> None:
    t = traced(lambda x: (x * 2).cpu() + 1, [cuda(4)])
    assert t.output_types == ["f32[4]"]
    t = traced(lambda x: x.to("cuda:0") + 1, [torch.randn(4)])
    assert t.output_types == ["f32[4]@cuda:0"]


def test_batch_norm_is_the_plain_kernel() -> None:
    module = cuda_module(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).eval())
    t = traced(module, [cuda(2, 3, 16, 16)], module)
    assert "aten.native_batch_norm" in t.text and "cudnn" not in t.text and not t.python_meta_ops
    # and is folded into the convolution
    assert "native_batch_norm" not in t.apply(["functionalize", "fold_batch_norm"]).text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_statistics_are_wide(dtype: torch.dtype) -> None:
    t = traced(lambda x: torch.native_layer_norm(x, (8,), None, None, 1e-5), [cuda(4, 8, dtype=dtype)])
    assert t.output_types[1:] == ["f32[4,1]@cuda:0"] * 2


def test_attention_is_one_node() -> None:
    q = cuda(2, 16, 4, 64, dtype=torch.float16).transpose(1, 2)
    t = traced(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), [q])
    assert t.text.count("aten.") == 1 and "aten.scaled_dot_product_attention" in t.text
    assert t.output_types == ["f16[2,4,16,64]{4096,64,256,1}@cuda:0"]  # in the query's order


def causal(q: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(16, 16, dtype=torch.bool, device=q.device).tril()
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask.view(1, 1, 16, 16).expand(2, 1, 16, 16))


def everything(q: torch.Tensor) -> torch.Tensor:
    mask = torch.arange(16, device=q.device) >= 0
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask.view(1, 1, 16, 1).expand(2, 1, 16, 16))


@pytest.mark.parametrize(("program", "kept"), [(causal, "None, 0.0, true"), (everything, "None, 0.0, false")])
def test_masks_made_of_indices(program: Callable[..., Any], kept: str) -> None:
    t = traced(program, [cuda(2, 4, 16, 64, dtype=torch.float16)]).apply(["functionalize", "decompose", "fold"])
    assert f"%0, %0, %0, {kept}" in t.text and "prim" not in t.text


def test_a_mask_of_the_caller_stays() -> None:
    t = traced(
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m),
        [cuda(2, 4, 16, 64), cuda(16, 16, dtype=torch.bool)],
    ).apply(["functionalize", "decompose", "fold"])
    assert "%0, %0, %0, %1, 0.0, false" in t.text


def test_devices_do_not_mix() -> None:
    with pytest.raises(_C.Declined, match="different devices"):
        traced(lambda x, y: x + y, [cuda(4), torch.randn(4)])


def library(module: torch.nn.Module, *args: torch.Tensor) -> str:
    module = cuda_module(module.eval())
    return (
        traced(module, args, module)
        .apply(["functionalize", "dce", "fold_batch_norm", "cuda_library", "decompose", "relax_layout"])
        .text
    )


class Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(16, 16, 3, padding=1, bias=False).half()
        self.norm = torch.nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)) + x)


def test_convolutions_of_half_precision() -> None:
    text = library(
        torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3), torch.nn.ReLU()).half(), cuda(2, 16, 9, 9, dtype=torch.half)
    )
    assert "aten.cudnn_convolution_relu" in text and "{1568,1,224,32}" in text
    text = library(
        torch.nn.Sequential(torch.nn.Conv2d(16, 32, 1), torch.nn.ReLU()).half(), cuda(2, 16, 9, 9, dtype=torch.half)
    )
    assert "aten._addmm_activation" in text and "convolution" not in text
    text = library(
        torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3), torch.nn.GELU()).half(), cuda(2, 16, 9, 9, dtype=torch.half)
    )
    assert "aten.convolution.default" in text and "prim.add" in text  # the bias is fused with what follows


@pytest.mark.parametrize(
    ("channels", "groups", "last"), [(64, 8, True), (32, 32, True), (48, 2, False), (16, 8, False)]
)
def test_grouped_convolutions(channels: int, groups: int, last: bool) -> None:
    """cuDNN has kernels for some widths of groups channels last, for others it takes twice as long."""
    conv = torch.nn.Conv2d(channels, channels, 3, padding=1, groups=groups, bias=False).half()
    text = library(conv, cuda(2, channels, 9, 9, dtype=torch.half))
    (line,) = (line for line in text.splitlines() if "aten.convolution.default" in line)
    assert (f"{{{81 * channels},1,{9 * channels},{channels}}}" in line) == last


def test_residual_block() -> None:
    assert "aten.cudnn_convolution_add_relu" in library(Residual(), cuda(2, 16, 9, 9, dtype=torch.half))


def test_vocabulary_is_padded() -> None:
    text = library(torch.nn.Linear(64, 1001).half(), cuda(128, 64, dtype=torch.half))
    assert "f16[128,1008]" in text and "prim.slice" in text
    text = library(torch.nn.Linear(64, 1000).half(), cuda(128, 64, dtype=torch.half))
    assert "prim.pad" not in text


aten = torch.ops.aten


def efficient(q: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
    out, lse, seed, offset = aten._scaled_dot_product_efficient_attention(q, q, q, None, True, 0.1)
    arguments = (g, q, q, q, None, out, lse, seed, offset, 0.1, [True, True, True, False])
    aten._scaled_dot_product_efficient_attention_backward(*arguments)  # draws nothing: goes when nobody reads it
    return [out, *aten._scaled_dot_product_efficient_attention_backward(*arguments)[:3]]


def flash(q: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
    out, lse, sq, sk, mq, mk, seed, offset, _ = aten._scaled_dot_product_flash_attention(q, q, q, 0.1)
    arguments = (g, q, q, q, out, lse, sq, sk, mq, mk, 0.1, False, seed, offset)
    aten._scaled_dot_product_flash_attention_backward(*arguments)
    return [out, *aten._scaled_dot_product_flash_attention_backward(*arguments)]


def cudnn(q: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
    out, lse, sq, sk, mq, mk, seed, offset, _ = aten._scaled_dot_product_cudnn_attention(q, q, q, None, True, 0.1)
    arguments = (g, q, q, q, out, lse, seed, offset, None, sq, sk, mq, mk, 0.1, False)
    aten._scaled_dot_product_cudnn_attention_backward(*arguments)
    return [out, *aten._scaled_dot_product_cudnn_attention_backward(*arguments)]


@pytest.mark.parametrize("program", [efficient, flash, cudnn])
def test_attention_with_its_backward(program: Callable[..., Any]) -> None:
    q, g = (cuda(2, 40, 4, 64, dtype=torch.float16).transpose(1, 2) for _ in range(2))
    t = traced(program, [q, g])
    assert t.output_types == ["f16[2,4,40,64]{10240,64,256,1}@cuda:0"] * 4
    assert not any("backward" in op for op in t.python_meta_ops)
    text = t.apply(["functionalize", "dce", "cse"]).text
    assert text.count("attention_backward") == 1 and text.count("attention.default") == 1


def test_random_attention_is_not_merged() -> None:
    def twice(q: torch.Tensor) -> list[torch.Tensor]:
        return [aten._scaled_dot_product_efficient_attention(q, q, q, None, True, 0.1)[0] for _ in range(2)]

    text = traced(twice, [cuda(2, 4, 40, 64, dtype=torch.float16)]).apply(["functionalize", "dce", "cse"]).text
    assert text.count("efficient_attention") == 2


def trained(fn: Callable[..., torch.Tensor], *args: torch.Tensor, raw: bool = False) -> str:
    """Results and gradients of one step after the passes that suit CUDA's libraries."""
    _C.stand_ins_train()
    wanted = [a for a in args if a.requires_grad]

    def step() -> list[torch.Tensor]:
        with torch.autograd.set_multithreading_enabled(False):
            y = fn(*args)
            return [y.detach(), *torch.autograd.grad(y, wanted, torch.ones_like(y))]

    t = _C.trace_function(step, [(f"a{i}", "user", a) for i, a in enumerate(args)])
    if raw:
        return t.text
    return t.apply(["functionalize", "dce", "cuda_library", "decompose", "fold", "cse", "relax_layout"]).text


def renamed(text: str) -> str:
    """Values numbered as they come, no locations."""
    names: dict[str, str] = {}
    text = re.sub(r"%\d+", lambda m: names.setdefault(m[0], f"%{len(names)}"), text)
    return re.sub(r'  ?(#|@ ?").*', "", text)


@pytest.mark.parametrize(("program", "is_causal"), [(causal, True), (everything, False)])
def test_masks_made_of_indices_in_training(program: Callable[..., Any], is_causal: bool) -> None:
    """ATen chooses the library while it traces: a mask that is known by then is none, or is_causal's own."""

    def plain(q: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q, is_causal=is_causal)

    q = cuda(2, 4, 16, 64, dtype=torch.float16).requires_grad_()
    assert renamed(trained(program, q)) == renamed(trained(plain, q))
    # With a device ATen takes a library, without one the plain formula, whose causal form makes a mask of its own.
    text, plain_text = (trained(p, q, raw=True) for p in (program, plain))
    if is_causal:
        assert text.count("= aten.tril") == plain_text.count("= aten.tril") + 1
    else:
        assert "= aten.where" not in text


def test_a_learned_bias_is_expanded_as_it_is_padded() -> None:
    """Attention takes rows of biases at aligned addresses: ATen pads them and expands a window of that."""

    def biased(q: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        bias = table[index.view(-1)].view(17, 17, 4).permute(2, 0, 1).contiguous().unsqueeze(0)
        bias = F.pad(bias, (0, 7))[..., :17].expand(2, 4, 17, 17)
        return aten._scaled_dot_product_efficient_attention(q, q, q, bias, True, 0.0)[0]

    q = cuda(2, 4, 17, 16, dtype=torch.half).requires_grad_()
    text = trained(biased, q, cuda(31, 4, dtype=torch.half).requires_grad_(), cuda(17, 17, dtype=torch.int64), raw=True)
    program = _C.triton_program(text, to_device=False)
    tensors = program["tensors"]
    for step in program["steps"]:
        if "efficient_attention" in step["op"]:
            bias = tensors[step["args"][4 if "backward" in step["op"] else 3][1]]
            assert (bias["storage"], bias["strides"]) == ("view", [0, 408, 24, 1])
            assert tensors[bias["index"]]["sizes"] == [1, 4, 17, 24]


def test_gradients_of_convolutions_stay_channels_last() -> None:
    text = trained(
        lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(x, w, b)), 2),
        cuda(2, 16, 8, 8, dtype=torch.half),
        cuda(32, 16, 3, 3, dtype=torch.half).requires_grad_(),
        cuda(32, dtype=torch.half).requires_grad_(),
    )
    backward = next(line for line in text.splitlines() if "aten.convolution_backward" in line)
    assert "b[false, true, false]" in backward and "f16[32,16,3,3]{144,1,48,16}" in backward
    assert "prim.sum" in text  # the bias' gradient
    pools = [line for line in text.splitlines() if "aten.max_pool2d_with_indices" in line]
    assert len(pools) == 2 and "f16[2,32,3,3]{288,1,96,32}" in pools[0] and "f16[2,32,6,6]{1152,1,192,32}" in pools[1]


def test_gradients_of_a_vocabulary_are_padded() -> None:
    text = trained(
        lambda x, w: x @ w.t(),
        cuda(256, 256, dtype=torch.half).requires_grad_(),
        cuda(1001, 256, dtype=torch.half).requires_grad_(),
    )
    products = [line.split(" = ")[0] for line in text.splitlines() if "aten.mm.default" in line]
    assert not any("1001" in line for line in products)
    assert len(products) == 3 and text.count("prim.pad") == 2  # of the weight and of the gradient, once each


@pytest.mark.skipif(torch.cuda.is_available(), reason="stand-ins must not meet a device")
@pytest.mark.parametrize(
    ("kind", "options", "state"),
    [
        (torch.optim.Adam, {"foreach": True}, ("exp_avg", "exp_avg_sq")),
        (torch.optim.AdamW, {"foreach": False}, ("exp_avg", "exp_avg_sq")),
        (torch.optim.RMSprop, {"foreach": True}, ("square_avg",)),
        (torch.optim.Adagrad, {"foreach": True}, ("sum",)),
    ],
)
def test_steps_with_counters_on_the_cpu(
    kind: type[torch.optim.Optimizer],
    options: dict[str, Any],
    state: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ATen counts on the CPU, and what changes from step to step goes along with the launches: no copy, no wait."""
    pytest.importorskip("triton")
    params = [torch.nn.Parameter(cuda(*sizes)) for sizes in ((64, 33), (17,))]
    step = kind([torch.nn.Parameter(torch.randn(3))], lr=0.05, **options)  # type: ignore[call-arg]
    step.param_groups[0]["params"] = params
    step.state.clear()
    for p in params:
        p.grad = cuda(*p.shape)
        step.state[p] = {"step": torch.tensor(3.0), **{name: cuda(*p.shape) for name in state}}
    _C.pretend_gpu(90, 132)
    monkeypatch.setenv("FLASHOVER_DUMP", str(tmp_path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            flashover.compile(step.step)()
    except Exception:  # the plan does not load, and eager finds no device
        pass
    finally:
        flashover.reset()
    (text,) = (f.read_text() for f in tmp_path.glob("*plan.txt"))
    steps = [line.split() for line in text.splitlines() if line.startswith(("  launch", "  call", "  copy"))]
    assert [s[0] for s in steps].count("launch") == len(params)
    assert [s[1].split("(")[0] for s in steps if s[0] == "call"].count("aten.add.Tensor") == len(params)
    assert all('"write' in s for s in steps if s[0] == "copy")
    assert "value64" in text or kind not in (torch.optim.Adam, torch.optim.AdamW)  # bias corrections


def test_whole_numbers_that_are_known_are_asked_on_the_cpu() -> None:
    """No device is needed to know them, and none has to be waited for."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(6, device=x.device)
        return x * 2 if bool((at.cumsum(0)[-1] == 15).all()) and at[3] > 2 else x[at[4]]

    t = traced(fn, [cuda(6, 8)])
    assert t.output_types == ["f32[6,8]@cuda:0"] and "aten.mul" in t.text


def test_indices_that_are_known_are_operands_like_others() -> None:
    """Nothing is asked: an index is an operator of the graph (its values were once fetched from the device)."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        row, column = torch.arange(2, device=x.device)[:, None], torch.arange(6, device=x.device)[None, :]
        steps = (torch.arange(6, device=x.device).expand(2, 6) != 1).cumsum(-1)
        return x + steps[row, column]

    t = traced(fn, [cuda(2, 6)])
    assert t.output_types == ["f32[2,6]@cuda:0"] and "aten.index" in t.text and "_to_copy" not in t.text


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "albert", "distilbert", "opt", "qwen2", "bart"])
def test_text_models_of_the_gpu_benchmark_are_whole(name: str) -> None:
    model, inputs = gpu_models.make(name, False, True)
    keys = [k for k, v in inputs.items() if isinstance(v, torch.Tensor)]
    rest = {k: v for k, v in inputs.items() if k not in keys}
    t = traced(
        lambda *a: model(**dict(zip(keys, a, strict=True)), **rest),
        [_C.cuda_stand_in(inputs[k]) for k in keys],
        cuda_module(model),
    )
    assert all("@cuda:0" in o for o in t.output_types) and not t.python_meta_ops


SYMBOLIC: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]], str]] = {
    "line": (lambda x, w: F.conv1d(x, w, padding=1), [(5, 4, 12), (6, 4, 3)], "f32[s0,6,s1]@cuda:0"),
    "line, transposed": (lambda x, w: F.conv_transpose1d(x, w), [(5, 4, 12), (4, 6, 3)], "f32[s0,6,s1 + 2]@cuda:0"),
    "reflection": (
        lambda x, g: torch.ops.aten.reflection_pad1d(x, [1, 1]) * g,
        [(5, 4, 12), (1,)],
        "f32[s0,4,s1 + 2]@cuda:0",
    ),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_lines_have_symbols_for_sizes(name: str) -> None:
    f, shapes, wanted = SYMBOLIC[name]
    tensors = [cuda(*s) for s in shapes]
    inputs = [(f"x{i}", "user", t) for i, t in enumerate(tensors)]
    with torch.no_grad():
        t = _C.trace_function(lambda: [f(*tensors)], inputs, symbolic={"x0": [0, 2]})
    assert t.output_types == [wanted]


def test_gradients_of_mirrored_borders_have_symbols_for_sizes() -> None:
    for name in ("reflection", "replication"):
        x, g = cuda(5, 4, 10, 7), cuda(5, 4, 12, 9)
        backward = getattr(torch.ops.aten, f"{name}_pad2d_backward")
        inputs = [("x", "user", x), ("g", "user", g)]
        run = lambda: [backward(g, x, [1, 1, 1, 1])]  # noqa: B023, E731
        with torch.no_grad():
            t = _C.trace_function(run, inputs, symbolic={"x": [0, 2, 3], "g": [0, 2, 3]})
        assert t.output_types == ["f32[s0,4,s1,s2]@cuda:0"]


def test_a_mask_of_one_row_is_no_version_of_its_own() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n, rows, _ = x.shape
        q = x.view(n, rows, 4, 16).transpose(1, 2)
        mask = torch.ones(1, 1, rows, rows, dtype=torch.bool, device=x.device).expand(n, -1, -1, -1)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask).transpose(1, 2).contiguous()

    x = cuda(5, 24, 64)
    with torch.no_grad():
        t = _C.trace_function(lambda: [f(x)], [("x", "user", x)], symbolic={"x": [0, 1]})
    assert t.size_guards == ["1 <= s0", "1 <= s1"]


def test_shuffled_pixels_that_lie_channels_last() -> None:
    x = _C.cuda_stand_in(torch.empty(5, 12, 24, 26).to(memory_format=torch.channels_last))
    with torch.no_grad():
        t = _C.trace_function(lambda: [F.pixel_shuffle(x, 2)], [("x", "user", x)], symbolic={"x": [0, 2, 3]})
    assert t.output_types == ["f32[s0,3,2*s1,2*s2]@cuda:0"]
