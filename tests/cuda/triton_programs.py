"""Small programs whose Triton kernels are run in Triton's interpreter: name -> (function, arguments).

`python triton_programs.py` runs all (TRITON_INTERPRET=1) and prints one JSON object: name -> what is wrong, or null."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from trace_tools import trained

PROGRAMS: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {}
torch.manual_seed(0)


def f32(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes)


def bf16(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes).bfloat16()


def add(name: str, function: Callable[..., Any], *args: torch.Tensor) -> None:
    PROGRAMS[name] = (function, list(args))


# ---- pointwise
add("add", lambda a, b: a + b * 2, f32(100, 7), f32(100, 7))
add("broadcast", lambda a, b, c: torch.relu(a * b + c), f32(13, 5, 9), f32(5, 1), f32(9))
add("strided", lambda a: a.transpose(0, 1)[::2, 1:] * 3, f32(40, 30))
add("transpose", lambda a, b: a.transpose(0, 1) + b, f32(200, 70), f32(70, 200))
add("bf16 chain", lambda a, b: F.gelu(a + b) * torch.sigmoid(a), bf16(64, 33), bf16(64, 33))
add("scalar", lambda a, b: a / b, f32(()), f32(()))
add(
    "integers",
    lambda a, b: (a // b, a % b, a * b - 7, a & b, a << 2, torch.abs(a)),
    torch.randint(-50, 50, (77,)),
    torch.randint(1, 9, (77,)),
)
add(
    "i32", lambda a: (a.to(torch.int8), a.float() / 3, a.bool(), -a), torch.randint(-100, 100, (77,), dtype=torch.int32)
)
add("bool", lambda a, b: (a | b, a & b, ~a, a.float() + b, a > b, torch.where(a, 1.0, 2.0)), f32(50) > 0, f32(50) > 0)
add("f64", lambda a: (a * 0.1 + 1e-9, torch.tanh(a), torch.exp(a) / 3), f32(40).double())
add("f16", lambda a, b: (a * b + 1, a.float()), f32(60).half(), f32(60).half())
add(
    "floor division",
    lambda a, b: (a // 1.5, a // -2, torch.div(7.0, b, rounding_mode="floor"), a // b, a // 0.0, b % -1.5),
    torch.tensor([3.0, -3.0, 1.5, -1.5, 0.0, -0.0, 4.6, -4.6, 1e30, torch.inf]),
    torch.tensor([1.0, 2.0, -1.5, 0.75, 3.0, -3.0, -0.0, 0.0, 7.0, 2.0]),
)
add(
    "signed zeros",  # told apart by what they divide
    lambda a: (
        [1 / z for z in (-a, a / -2.0, a * -1.0, torch.full_like(a, -0.0), a + -0.0)]
        + [1 / torch.tanh(a), 1 / torch.expm1(a), 1 / torch.erf(a.half()), a / -0.0]
    ),
    torch.tensor([0.0, -0.0, 1.0, -2.0]),
)
add("digamma below 0", torch.digamma, torch.tensor([-1e-30, -1e-3, -0.25, -0.9999999, -1.0000001, -7.75]))
add("index values", lambda a: a + torch.arange(33) * torch.arange(12)[:, None], f32(12, 33))
add(
    "functions",
    lambda x: [
        f(x)
        for f in (
            torch.exp,
            torch.sin,
            torch.cos,
            torch.tanh,
            torch.erf,
            torch.expm1,
            torch.floor,
            torch.ceil,
            torch.round,
            torch.trunc,
            torch.sigmoid,
            torch.sign,
            torch.abs,
            torch.atan,
            torch.sinh,
            torch.tan,
        )
    ],
    f32(130) * 3,
)
add(
    "functions above 0",
    lambda x: [
        f(x)
        for f in (
            torch.log,
            torch.log2,
            torch.log1p,
            torch.sqrt,
            torch.rsqrt,
            torch.reciprocal,
            torch.lgamma,
            torch.digamma,
            torch.i0,
            torch.log10,
        )
    ],
    torch.rand(130) * 20 + 1e-3,
)
add(
    "functions of two",
    lambda a, b: (
        torch.pow(a.abs(), b),
        torch.fmod(a, b),
        torch.remainder(a, b),
        torch.floor_divide(a, b),
        torch.atan2(a, b),
        torch.hypot(a, b),
        torch.copysign(a, b),
    ),
    f32(90) * 5,
    f32(90),
)
add(
    "nan",
    lambda a, b: (torch.maximum(a, b), torch.fmax(a, b), torch.isnan(a), torch.relu(a), torch.clamp(a, -1, 1)),
    torch.tensor([1.0, float("nan"), -3.0, float("inf")]),
    torch.tensor([float("nan"), 1.0, -4.0, 2.0]),
)
add("erfinv", lambda a: torch.erfinv(a), torch.linspace(-1, 1, 41))

# ---- views and movement
add("cat", lambda a, b, c: torch.cat([a, b * 2, c], 1), f32(10, 3), f32(10, 8), f32(10, 5))
add("pad", lambda a: F.pad(a, (1, 2, 3, 0), value=4.0) + 1, f32(7, 9))
add("flip roll", lambda a: torch.roll(a.flip(0), 3, 1), f32(8, 12))
add(
    "rotate half",
    lambda q, c, s: q * c + torch.cat([-q[..., 16:], q[..., :16]], -1) * s,
    f32(2, 3, 10, 32),
    f32(10, 32),
    f32(10, 32),
)
add("gather", lambda a, i: torch.gather(a, 1, i), f32(9, 20), torch.randint(0, 20, (9, 4)))
add(
    "index",
    lambda a, i, j: a[i, j] + a[:, 2][i],
    f32(11, 13),
    torch.randint(-11, 11, (30,)),
    torch.randint(0, 13, (30,)),
)
add("embedding", lambda w, i: F.embedding(i, w) * 2, f32(50, 24), torch.randint(0, 50, (3, 17)))
add(
    "causal mask",
    lambda a: a.masked_fill(torch.ones(20, 20, dtype=torch.bool).triu(1), float("-inf")).softmax(-1),
    f32(4, 20, 20),
)
add("max_pool", lambda a: F.max_pool2d(a, 3, 2, 1), f32(2, 5, 15, 17))
add("avg_pool", lambda a: F.avg_pool2d(a, 3, 2, 1, count_include_pad=False), f32(2, 5, 15, 17))
add("upsample", lambda a: F.interpolate(a, scale_factor=2, mode="nearest"), f32(1, 3, 5, 6))

# ---- reductions
add("sum last", lambda a: a.sum(-1), f32(37, 200))
add("sum first", lambda a: a.sum(0), f32(300, 37))
add("sum middle", lambda a: a.sum(1), f32(7, 50, 37))
add("sum all", lambda a: (a * a).sum(), f32(123, 45))
add("long rows", lambda a: a.sum(-1), f32(3, 40000))
add("long rows softmax", lambda a: a.softmax(-1), f32(2, 9000))
add("mean var", lambda a: torch.var_mean(a, 1), f32(20, 300))
add("mean of one", lambda a: torch.var_mean(a, 1, correction=0), torch.tensor([[float("inf")], [2.0], [float("nan")]]))
add("amax amin", lambda a: (a.amax(1), a.amin(0), a.amax()), f32(33, 70))
add("argmax", lambda a: (a.argmax(1), a.argmin(0), a.argmax()), f32(33, 70))
add("argmax ties", lambda a: (a.argmax(1), a.argmin(1)), torch.randint(0, 3, (20, 50)))
add("argmax nan", lambda a: a.argmax(1), torch.where(torch.rand(8, 30) < 0.2, float("nan"), torch.randn(8, 30)))
add("argmax of everything", lambda a: (a.argmax(), a.flatten().argmin(0)), f32(75, 61))
add(
    "argmax in parts",
    lambda a: a.argmax(-1),
    torch.where(torch.rand(1, 4500) < 0.001, float("nan"), torch.randn(1, 4500)),
)
add("argmax of minus infinity", lambda a: a.argmax(), torch.full((4500,), float("-inf")))
add("any all", lambda a: ((a > 2).any(1), (a > -3).all(0), (a > 2).sum(1)), f32(20, 90))
add("prod", lambda a: a.prod(1), f32(5, 9))
add("integer sum", lambda a: (a.sum(), a.sum(0), a.amax(1)), torch.randint(-9, 9, (40, 30)))
add("softmax", lambda a: a.softmax(-1), f32(50, 77))
add("softmax first", lambda a: a.softmax(0), f32(50, 77))
add("softmax repeated", lambda a: (a.softmax(-1).repeat(1, 2), a.softmax(0).repeat_interleave(2, 0)), f32(5, 77))
add("softmax bf16", lambda a: a.softmax(-1), bf16(16, 128))
add("log_softmax", lambda a: a.log_softmax(-1), f32(20, 1000))
add("layer_norm", lambda a, r, w, b: F.layer_norm(a + r, (96,), w, b), f32(40, 96), f32(40, 96), f32(96), f32(96))
add("layer_norm bf16", lambda a, w, b: F.layer_norm(a, (768,), w, b), bf16(8, 768), bf16(768), bf16(768))
add("rms_norm", lambda a, w: a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-6) * w, f32(20, 320), f32(320))
add("group_norm", lambda a, w, b: F.group_norm(a, 4, w, b), f32(2, 16, 9, 9), f32(16), f32(16))
add("batch_norm", lambda a, w, b: F.batch_norm(a, None, None, w, b, True), f32(6, 10, 8, 8), f32(10), f32(10))
add("batch_norm wide", lambda a: F.batch_norm(a.permute(0, 3, 1, 2), None, None, None, None, True), f32(16, 32, 32, 8))
add("cross_entropy", lambda a, t: F.cross_entropy(a, t), f32(30, 100), torch.randint(0, 100, (30,)))
add(
    "cross_entropy ignoring",
    lambda a, t: [F.cross_entropy(a, t, ignore_index=7, reduction=r) for r in ("mean", "sum", "none")],
    f32(30, 50),
    torch.randint(0, 12, (30,)),
)
add("column sums", lambda a, b: ((a * b).sum(0), a.sum(0)), f32(2048, 40), f32(2048, 40))
add("odd columns", lambda a: a.sum(0), f32(2053, 7))
add("odd long", lambda a: a.sum(), f32(40009))
add("row then column", lambda a: (a / a.sum(-1, keepdim=True)).sum(0), torch.rand(60, 50) + 0.1)
add("norm", lambda a: a / a.norm(dim=1, keepdim=True), f32(40, 64))

# ---- scans and scatters
add("cumsum", lambda a: a.cumsum(-1), f32(12, 100))
add("cumsum first", lambda a: a.cumsum(0) * 2, f32(50, 20))
add("cumsum long", lambda a: a.cumsum(-1), f32(2, 4500))
add("cumsum in parts", lambda a: (a.cumsum(0), a.double().cumsum(0) + 1), f32(9001))
add(
    "cumsum of infinity in parts",
    lambda a: a.cumsum(0),
    torch.where(torch.arange(9001) == 5000, float("inf"), f32(9001)),
)
add(
    "train embedding",
    lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 20, 3, False),
    f32(50, 24),
    torch.randint(0, 20, (50,)),
)
add("cumsum integers in parts", lambda a: a.cumsum(-1), torch.randint(-5, 5, (3, 5000)))
add("cumsum integers", lambda a: (a.cumsum(1), (a > 0).cumsum(1)), torch.randint(-5, 5, (6, 70)))
add("cumprod", lambda a: a.cumprod(-1), f32(5, 30) * 0.1 + 1)
add(
    "scatter",
    lambda a, i, s: a.scatter(1, i, s),
    f32(6, 30),
    torch.stack([torch.randperm(30)[:10] for _ in range(6)]),
    f32(6, 10),
)
add("scatter_add", lambda a, i, s: a.scatter_add(0, i, s), f32(6, 30), torch.randint(0, 6, (40, 30)), f32(40, 30))
add("index_add", lambda a, i, s: a.index_add(0, i, s), f32(6, 30), torch.randint(0, 6, (40,)), f32(40, 30))
add(
    "index_put",
    lambda a, i, s: a.index_put((i,), s, accumulate=True),
    f32(16, 5),
    torch.randint(0, 16, (50,)),
    f32(50, 5),
)
add("mutation", lambda a, b: a.add_(b).mul_(2), f32(33, 5), f32(33, 5))
add("slices", lambda a, b: (a[:, 3:10].mul_(b), a)[1] + 1, f32(20, 15), f32(20, 7))


# ---- 8-bit floats
CORNERS = torch.tensor(
    [
        *(0.0, -0.0, 448, 449, 464, 465, -464, 479, 480, 1e5, -1e5, 57344, 61439, 61440, 65535, torch.nan, torch.inf),
        *(-torch.inf, 2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 2.0**-6, 2.0**-16, 2.0**-17, 3 * 2.0**-18, 2.0**-14, 1e-40),
    ]
)
for narrow in (torch.float8_e4m3fn, torch.float8_e5m2):
    eight = torch.cat([f32(3000) * 3, f32(1000) * 1e-3, f32(1000) * 200, f32(200) * 3e4, CORNERS])
    add(
        f"to and from {narrow}",
        lambda a, b, t=narrow: (a.to(t).view(torch.uint8), (a * 2).to(t).float() + 1, b.to(t).half(), b.to(t)),
        eight,
        eight.bfloat16(),
    )
    every = torch.arange(256, dtype=torch.uint8).view(narrow)
    add(f"every {narrow}", lambda a: (a.float(), a.bfloat16() * 2, a.double(), a.float().t().contiguous()), every)
    add(
        f"scaled {narrow}",
        lambda a, t=narrow: (lambda s: ((a / s).to(t), s))(a.abs().amax(1, keepdim=True) / torch.finfo(t).max),
        f32(64, 96),
    )
add("double to 8 bits", lambda a: a.to(torch.float8_e4m3fn).float() + a.float(), eight.double())


# ---- training: results and gradients of one step
torch.manual_seed(1)  # their numbers do not follow from how many the programs above draw


def leaf(t: torch.Tensor) -> torch.Tensor:
    return t.requires_grad_()


def conv_net(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y = F.relu(F.batch_norm(F.conv2d(x, w, b, padding=1), None, None, None, None, True))
    y = F.max_pool2d(y, 3, 2, 1)
    return F.relu(F.conv2d(y, v) + y).mean((2, 3))


add(
    "train convolutions",
    trained(conv_net),
    leaf(bf16(4, 8, 10, 10)),
    leaf(bf16(16, 8, 3, 3) / 8),
    leaf(bf16(16)),
    leaf(bf16(16, 16, 1, 1) / 4),
)
# A gradient in eager's order meets memory that lies channels last.
add(
    "train residual",
    trained(lambda x, w: F.relu(F.batch_norm(F.conv2d(x, w), None, None, None, None, True) + x).mean((2, 3))),
    leaf(bf16(2, 16, 7, 7).contiguous(memory_format=torch.channels_last).detach()),
    leaf(bf16(16, 16, 1, 1) / 4),
)


def scores(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Of an odd vocabulary, whose product is a slice of a padded one, with a reduction of its rows."""
    y = (x @ w.t()).float()
    return y.sigmoid() * y.sum(-1, keepdim=True)


add(
    "train vocabulary",
    trained(scores),
    leaf(bf16(256, 256)),
    leaf(bf16(515, 256) / 16),
)
add(
    "train layer_norm",
    trained(lambda x, w, b: F.layer_norm(x, (96,), w, b)),
    leaf(f32(40, 96)),
    leaf(f32(96)),
    leaf(f32(96)),
)
add(
    "train cross_entropy",
    trained(lambda x, t: F.cross_entropy(x, t, ignore_index=3, label_smoothing=0.1)[None]),
    leaf(f32(60, 50)),
    torch.randint(0, 50, (60,)),
)
add(
    "train nll",
    trained(lambda x, t: F.nll_loss(x, t, reduction="none")),
    leaf(f32(60, 50)),
    torch.randint(0, 50, (60,)),
)
add("statistics far from zero", lambda a: torch.var_mean(a, 0), f32(8000, 20) * 0.01 + 30)
add("statistics behind an outlier", lambda a: torch.var_mean(a, 0), torch.cat([f32(1, 8) * 1e5, f32(4999, 8)]))
add("infinite mean", lambda a: torch.var_mean(a, 0), torch.cat([torch.full((1, 8), float("inf")), f32(4999, 8)]))
add(
    "infinite somewhere",
    lambda a: torch.var_mean(a, 0),
    torch.cat([f32(3000, 8), torch.full((1, 8), -float("inf")), f32(1999, 8)]),
)
add("no number first", lambda a: torch.var_mean(a, 0), torch.cat([torch.full((1, 8), float("nan")), f32(4999, 8)]))


def copies(args: list[torch.Tensor]) -> list[torch.Tensor]:
    return [a.detach().clone().requires_grad_(a.requires_grad) for a in args]


def check(name: str) -> str | None:
    from trace_tools import Program, tensors_of, trace
    from triton_tools import Runner

    from flashover import _C

    function, args = PROGRAMS[name]
    given = copies(args)
    traced = trace(Program(function, given))
    program = _C.triton_program(traced.text, processors=8)
    after = copies(args)
    expected = tensors_of(function(*after))
    try:
        got = Runner(program).run(list(traced.inputs))
    except Exception:
        return traceback.format_exc() + "\n".join(k["text"] for k in program["kernels"])
    wide = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 2e-5}
    for i, (a, b) in enumerate(zip([*got, *given], [*expected, *after], strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{i}: {a.dtype} {tuple(a.shape)} for {b.dtype} {tuple(b.shape)}"
        tolerance = wide.get(a.dtype, 1e-7)
        if a.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            a, b = a.float(), b.float()
        if not torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
            worst = (a.double() - b.double()).abs().max().item()
            return f"{i}: off by {worst}\n" + "\n".join([*program["loops"], *(k["text"] for k in program["kernels"])])
    return None


if __name__ == "__main__":
    names = sys.argv[1:] or list(PROGRAMS)
    result = {}
    for n in names:
        try:
            result[n] = check(n)
        except Exception:
            result[n] = traceback.format_exc()
    print("RESULT" + json.dumps(result))
