"""Random tensor programs, compiled against eager: `./x fuzz 600` by hand, fixed seeds in CI (test_fuzz_programs.py).

A program is a list of lines over a pool of tensors: pointwise, reductions, views, indexing, cat, matmul, norm, softmax,
in-place writes through views, over inputs that may be non-contiguous, stride-0, empty, 0-d, integer, bool, half
precision, NaN and infinite. It is compiled as Python source, so the whole path is exercised: capture, trace,
functionalize, fuse, run. Compared elementwise with an fp64 run of the same program as the arbiter: outputs, mutated
inputs, dtypes, strides, offsets, memory shared with the inputs and among the results.
"""

from __future__ import annotations

import search_path

import argparse
import functools
import linecache
import locale
import os
import random
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

FLOATS = [torch.float32, torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
# Holes: a, b tensors; d, e dims of a; n the size of dim d; m the number of dims; F torch.nn.functional.
UNARY = [
    "torch.relu({a})", "torch.sigmoid({a})", "torch.tanh({a})", "torch.exp({a}.clamp(max=4))", "{a}.abs().sqrt()",
    "torch.neg({a})", "F.gelu({a})", "F.silu({a})", "F.gelu({a}, approximate='tanh')", "{a} * 2.5", "{a} + 1",
    "1 - {a}", "{a}.clamp(-1, 1)", "torch.sin({a})", "torch.erf({a})", "{a}.square()", "torch.log1p({a}.abs())",
    "F.leaky_relu({a}, 0.1)", "F.hardswish({a})", "F.softplus({a})", "torch.where({a} > 0, {a}, {a} * 0.1)",
    "{a}.float()", "{a}.to({a}.dtype)", "torch.rsqrt({a}.abs() + 1)", "{a} / 3", "{a}.cos()", "torch.floor({a})",
    "torch.round({a})", "{a}.sign()", "torch.reciprocal({a}.abs() + 1)", "torch.nan_to_num({a}, 0.5, 100, -100)",
    "F.elu({a})", "F.mish({a})", "F.relu6({a})", "F.hardtanh({a})", "F.logsigmoid({a})", "F.celu({a}, 0.5)",
    "F.selu({a})", "F.softsign({a})", "F.hardsigmoid({a})", "torch.log({a}.abs() + 1)", "torch.log2({a}.abs() + 1)",
    "torch.expm1({a}.clamp(max=3))", "({a}.abs() + 0.5) ** 1.5", "{a} ** 2", "{a} ** 3", "2 ** {a}.clamp(-4, 4)",
    "torch.trunc({a})", "torch.frac({a})", "torch.ceil({a})", "torch.isnan({a})", "torch.isfinite({a})",
    # What NaN is as an integer is left open by C++; ATen's scalar and vector code differ.
    "{a}.nan_to_num(0).clamp(-100, 100).int()", "{a}.nan_to_num(0).clamp(-100, 100).long()",
    "{a}.logical_not()", "{a}.bool()", "{a}.double()",
    "{a} // 1.5", "{a} % 0.7", "torch.fmod({a}, 0.7)", "{a} // -2", "{a} % 3", "{a} % -3", "torch.atan({a})",
    "torch.sinh({a}.clamp(-3, 3))", "torch.asinh({a})", "torch.erfc({a})", "torch.clamp({a}, min=0.25)",
    "torch.masked_fill({a}, {a} > 0.5, -1)", "torch.where({a} > 0, 1.0, {a})", "torch.where({a} != {a}, 0, {a})",
    "{a}.sigmoid() * {a}", "{a} * True", "torch.zeros_like({a}) + {a}", "torch.full_like({a}, 2) * {a}",
    "torch.arange({a}.numel()).reshape({a}.shape).to({a}.dtype) + {a}", "{a} == {a}.max()", "-{a}.abs()",
]  # fmt: skip
BINARY = [
    "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / ({b}.abs() + 1)", "torch.maximum({a}, {b})",
    "torch.minimum({a}, {b})", "torch.where({a} > {b}, {a}, {b})", "torch.lerp({a}.float(), {b}.float(), 0.3)",
    "{a} + {b} * 0.5", "torch.add({a}, {b}, alpha=2)", "({a} > {b}).to({a}.dtype)",
    "torch.atan2({a}.float(), {b}.float() + 3)", "torch.fmod({a}, {b}.abs() + 1)",
    "torch.remainder({a}, {b}.abs() + 1)", "{a} // ({b}.abs() + 1)", "torch.addcmul({a}, {a}, {b}, value=0.5)",
    "torch.hypot({a}.float(), {b}.float())", "({a} <= {b}) & ({a} != 0)", "({a} < {b}) | ({b} > 0)",
    "torch.logical_xor({a}, {b})", "{a}.eq({b})", "torch.fmax({a}, {b})", "F.mse_loss({a}, {b})",
    "torch.sub({a}, {b}, alpha=0.5)", "torch.clamp({a}, max={b})", "torch.rsub({a}, {b})",
    "torch.cat([{a}.flatten(), {b}.flatten()])", "{a}.float().flatten().outer({b}.float().flatten())",
    "torch.broadcast_tensors({a}, {b})[1]", "{a}.expand_as({b}) * 2", "F.smooth_l1_loss({a}, {b})",
    "torch.floor_divide({a}, {b}.abs() + 1)", "torch.div({a}, {b}.abs() + 1, rounding_mode='trunc')",
    "torch.where({b} > 0, {a}, 0)",
]  # fmt: skip
REDUCE = [
    "{a}.sum({d})", "{a}.mean({d})", "{a}.amax({d}, keepdim=True)", "{a}.float().var({d}, correction=0)",
    "{a}.sum({d}, keepdim=True)", "torch.softmax({a}.float(), {d})", "torch.log_softmax({a}.float(), {d})",
    "{a}.float().cumsum({d})", "{a}.argmax({d}).to({a}.dtype)", "{a}.max({d})[0]",
    "torch.logsumexp({a}.float(), {d})", "{a}.float().norm(dim={d})", "({a} > 0).any({d})",
    "F.layer_norm({a}.float(), ({a}.shape[-1],))", "torch.softmax({a}, {d})", "F.layer_norm({a}, ({a}.shape[-1],))",
    "F.rms_norm({a}, ({a}.shape[-1],))", "({a} > -1).all({d})", "{a}.prod({d})", "{a}.float().std({d}, correction=0)",
    "torch.var_mean({a}.float(), {d}, correction=0)[1]", "{a}.nansum({d})", "{a}.count_nonzero({d})",
    "{a}.aminmax(dim={d})[0]", "{a}.amin({d})", "{a}.argmin({d}, keepdim=True)", "{a}.min({d})[1]", "{a}.sum()",
    "{a}.float().mean()", "{a}.max()", "{a}.argmax()", "{a}.float().sum(({d}, {e}))", "{a}.all()", "{a}.any()",
    "{a}.cummax({d})[0]", "{a}.cummin({d})[0]", "{a}.cumprod({d})", "{a}.cumsum({d})",
    "{a}.float().logcumsumexp({d})", "F.normalize({a}.float(), dim={d})", "{a}.float().norm(p=1, dim={d})",
    "{a}.diff(dim={d})", "{a}.float().median({d})[0]", "{a}.sort({d})[0]", "{a}.sort({d}, descending=True)[0]",
    "{a}.topk(min(2, {n}), {d})[0]", "{a}.argsort({d}, stable=True)", "{a}.float().kthvalue(1, {d})[0]",
    "F.group_norm({a}.float(), 1)", "F.batch_norm({a}.float(), None, None, training=True)",
    "F.instance_norm({a}.float())", "{a}.mean(({d}, {e}), keepdim=True)",
    "torch.nn.functional.softmin({a}.float(), {d})", "{a}.sum({d}, dtype=torch.float64)", "{a}.bool().sum({d})",
]  # fmt: skip
VIEWS = [
    "{a}.transpose({d}, {e})", "{a}.flatten()", "{a}.unsqueeze({d})", "{a}.flip({d})", "{a}.reshape(-1)",
    "{a}.narrow({d}, 0, ({n} + 1) // 2)", "torch.cat([{a}, {a}], {d})", "torch.stack([{a}, {a} * 2], {d})",
    "{a}.repeat_interleave(2, {d})", "{a}.roll(1, {d})", "F.pad({a}, (1, 2))", "{a}.select({d}, 0)",
    "{a}.contiguous()", "{a}.clone()", "{a}[..., ::2]", "{a}.movedim({d}, {e})", "{a}.expand(2, *{a}.shape)",
    "{a}.tril() if {a}.dim() > 1 else {a}", "{a}.unbind({d})[0]", "{a}.chunk(2, {d})[0]",
    "{a}.index_select({d}, torch.tensor([0]))", "{a}.unfold({d}, 1, 1)", "{a}.diagonal() if {a}.dim() > 1 else {a}",
    "{a}.as_strided((2, 2), (1, 1))", "{a}.unfold({d}, 2, 1)", "{a}.squeeze()", "{a}.split(2, {d})[-1]",
    "{a}.tensor_split(3, {d})[1]", "{a}[None]", "{a}[..., -1]", "{a}[..., 1:-1]", "{a}.repeat(2, *[1] * ({m} - 1))",
    "{a}.unflatten({d}, (-1, 1))", "F.pad({a}, (1, -1))", "F.pad({a}, (-1, 2), value=3)",
    "F.pad({a}[None, None].flatten(2), (1, 1), mode='replicate')", "torch.roll({a}, (1, 2), ({d}, {e}))",
    "{a}.to(memory_format=torch.channels_last)", "{a}.permute(*range({m} - 1, -1, -1))", "{a}.view(-1)",
    "torch.hstack([{a}, {a}])", "{a}.triu(1)", "{a}.swapaxes(0, -1)", "{a}.expand({a}.shape)",
    "torch.stack([{a}, {a}], -1).flatten(-2)", "{a}.chunk(2, {d})[-1]", "torch.cat([{a}, {a}[..., :1]], -1)", "{a}.T",
    "{a}.rot90(1, (0, -1))", "torch.cat([{a}.narrow({d}, 1, 1), {a}], {d})", "{a}.detach()", "{a}.view_as({a})",
    "torch.tile({a}, (2,))", "torch.block_diag({a}, {a})",
]  # fmt: skip
INDEX = [
    "{a}.gather({d}, torch.zeros_like({a}, dtype=torch.long))",
    "{a}.take_along_dim({a}.argsort({d}, stable=True), {d})", "{a}[torch.tensor([0, -1])]",
    "{a}[..., torch.tensor([0, 0])]",
    "{a}.scatter({d}, torch.zeros_like({a}, dtype=torch.long).narrow({d}, 0, 1), {a})",
    "{a}.index_fill({d}, torch.tensor([0]), 1)", "{a}.scatter_add({d}, torch.zeros_like({a}, dtype=torch.long), {a})",
    "{a}.index_add({d}, torch.tensor([0, 0]), {a}.narrow({d}, 0, 2))",
    "{a}.index_copy({d}, torch.tensor([1]), {a}.narrow({d}, 0, 1))",
    "{a}.select_scatter({a}.select({d}, 0) * 2, {d}, -1)", "{a}.diagonal_scatter({a}.diagonal() * 2)",
    "{a}.slice_scatter({a}.narrow({d}, 0, 1) + 1, {d}, 1, 2)", "F.one_hot({a}.abs().clamp(max=4).long(), 5)",
    "F.embedding({a}.abs().clamp(max=3).long(), torch.arange(12.0).view(4, 3))",
    "{a}.scatter_reduce({d}, torch.zeros_like({a}, dtype=torch.long), {a}, 'amax')",
    "{a}.index_put((torch.tensor([0, 0]),), {a}[:1] * 2, accumulate=True)",
    "{a}.masked_scatter({a} > 0, {a}.flatten())", "torch.bucketize({a}.float(), torch.tensor([-1.0, 0.0, 1.0]))",
    "{a}[torch.arange({a}.shape[0]), ..., 0]", "{a}[[0]]", "{a}.take(torch.tensor([0, -1]))",
    "{a}[:, torch.tensor([0])] if {m} > 1 else {a}",
    "{a}.scatter({d}, torch.zeros_like({a}, dtype=torch.long).narrow({d}, 0, 1), 3)",
]  # fmt: skip
NN = [
    "{a}.float() @ {a}.float().transpose(-1, -2)", "F.linear({a}.float(), torch.ones(5, {a}.shape[-1]) * 0.1)",
    "F.max_pool1d({a}.float().reshape(1, 1, -1), 3, 2, 1)", "F.avg_pool1d({a}.float().reshape(1, 1, -1), 2)",
    "F.max_pool2d({a}.float(), 2)", "F.avg_pool2d({a}.float(), 2, 1, 1, count_include_pad=False)",
    "F.adaptive_avg_pool2d({a}.float(), 2)", "F.interpolate({a}.float()[None], scale_factor=2)",
    "F.interpolate({a}.float(), scale_factor=2, mode='bilinear')",
    "F.conv1d({a}.float().reshape(1, 1, -1), torch.ones(2, 1, 3) * 0.3, padding=1)",
    "F.conv2d({a}.float(), torch.ones(3, {a}.shape[-3], 1, 1) * 0.1)",
    "F.conv2d({a}.float(), torch.ones({a}.shape[-3], 1, 3, 3) * 0.1, padding=1, groups={a}.shape[-3])",
    "F.scaled_dot_product_attention(*[{a}.float()[None]] * 3)", "F.glu({a}.float(), {d})",
    "F.cosine_similarity({a}.float(), {a}.float() + 1, dim={d})",
    "torch.einsum('...i,...i->...', {a}.float(), {a}.float())",
    "F.cross_entropy({a}.float().flatten(1), torch.zeros({a}.shape[0], dtype=torch.long))",
    "torch.cdist({a}.float(), {a}.float() + 1)", "torch.bmm({a}.float(), {a}.float().mT)",
    "torch.addmm({a}.float()[:, :1], {a}.float(), {a}.float().t())",
    "F.pixel_shuffle({a}.float().repeat_interleave(4, -3), 2)",
    "torch.baddbmm({a}.float(), {a}.float(), {a}.float().mT @ {a}.float())", "{a}.float() @ {a}.float()[..., 0]",
    "F.linear({a}, torch.ones(4, {a}.shape[-1], dtype={a}.dtype), torch.ones(4, dtype={a}.dtype))",
]  # fmt: skip
INPLACE = [
    "{a}.add_(1)", "{a}.mul_(0.5)", "{a}.relu_()", "{a}[..., 0] = 0", "{a}.copy_({a} * 2)", "{a}.clamp_(min=-1)",
    "{a}.select({d}, 0).fill_(2)", "{a}.transpose({d}, {e}).add_(0.5)", "{a}.zero_()", "{a}.masked_fill_({a} > 1, 0)",
    "{a}.view(-1)[0:1] = 3", "{a}[..., ::2].mul_(2)", "{a}.sub_({b})", "{a}[..., 1:] = {a}[..., :-1].clone()",
    "{a}[0] += 1", "{a}.index_fill_({d}, torch.tensor([0]), 1)", "{a}.diagonal().add_(1)", "{a}.fill_diagonal_(2)",
    "{a}.scatter_({d}, torch.zeros_like({a}, dtype=torch.long).narrow({d}, 0, 1), 3)",
    "{a}.index_put_((torch.tensor([0]),), {a}[:1] + 1)", "{a}.copy_({b})", "torch.add({a}, 1, out={a})",
    "{a}.div_(3)", "{a}.floor_()", "{a}.clamp_(0, 1)", "{a}.unsqueeze(0).sub_(1)", "{a}.narrow({d}, 0, 1).add_(5)",
    "{a}.flatten()[0:1].add_(1)", "{a}.index_add_({d}, torch.tensor([0]), {a}.narrow({d}, 0, 1))",
    "{a}.addcmul_({a}, {a})", "{a}.expand_as({a}).neg_()", "{a}[{a} > 1] = 0", "{a}.unbind({d})[0].mul_(2)",
    "{a}.chunk(2, {d})[0].add_({a}.chunk(2, {d})[0])", "{a}.flip(0).add_(1)",
    "{a}.permute(*range({m} - 1, -1, -1))[0] = 1",
]  # fmt: skip
INTEGER = [
    "{a} // 3", "{a} // -2", "{a} % 3", "{a} % -3", "torch.div({a}, {b} * 2 + 1, rounding_mode='floor')",
    "torch.div({a}, {b} * 2 + 1, rounding_mode='trunc')", "torch.remainder({a}, {b} * 2 + 1)",
    "torch.fmod({a}, {b} * 2 + 1)", "{a} & {b}", "{a} | {b}", "{a} ^ {b}", "~{a}", "{a} << 1", "{a} >> 1",
    "{a} * {a} * {a}", "{a} + 100", "{a} * 1000003", "{a} / 2", "{a} + 0.5", "{a}.abs()", "-{a}", "{a} ** 2",
    "{a}.to(torch.int8)", "{a}.to(torch.uint8)", "{a}.to(torch.int16)", "{a}.long()", "{a} > {b}", "{a}.sign()",
    "{a}.clamp(-3, 5)", "{a}.bitwise_not()", "torch.gcd({a}, {b})", "{a} - {b} * 7",
    "torch.where({a} > {b}, {a}, {b})", "{a} * 0.25", "{a}.float().sqrt()", "torch.maximum({a}, {b})",
    "{a}.sum({d}, dtype={a}.dtype)", "torch.bitwise_left_shift({a}, 3)", "{a}.eq(3) * {a}", "2 - {a}",
    "{a} // ({b}.abs() + 1)", "{a}.bool() & {b}.bool()",
]  # fmt: skip
# Sizes that follow from data.
DATA = [
    "{a}[{a} > 0]", "{a}.masked_select({a} > 0.5)", "torch.nonzero({a})", "{a}[torch.nonzero({a} > 0, as_tuple=True)]",
    "{a}[{a}.reshape({a}.shape[0], -1).sum(1) > 0]", "{a}[{a} > 100].sum()", "{a}[:int(({a} > 0).sum())]",
    "torch.arange(int(({a} > 0).sum())) * 2", "{a}.new_zeros(({a} > 0).sum().item(), 2) + 1",
    "{a}.repeat_interleave(({a}.reshape({a}.shape[0], -1)[:, 0] > 0).long(), 0)", "torch.cat([{a}, {a}[{a} > 0]])",
    "torch.unique({a} > 0)", "torch.bincount({a}.nan_to_num(0).abs().clamp(max=4).long().flatten())",
    "{a}.index_put(({a} > 0,), {a}[{a} > 0] * 2)", "torch.where({a} > 0)[0]", "{a}[{a} > 0][:3]",
]  # fmt: skip

# Where a rounding may decide.
DISCONTINUOUS = (
    "floor", "round", "sign", "arg", " > ", "unique", "//", "%", "trunc", "ceil", "frac", "int(", "long(", "bool(",
    "min({d})[1]", "isnan", "isfinite", "logical", "fmod", "remainder", "==", "!=", "<", ".eq(", "count_nonzero",
    "bucketize", "any(", "all(",
)  # fmt: skip
PRECISIONS = {".float()": torch.float32, ".half()": torch.float16, ".bfloat16()": torch.bfloat16}


@dataclass
class Program:
    source: str
    make_inputs: Callable[[], list[torch.Tensor]]
    seed: int
    lines: list[str] = field(default_factory=list)

    def function(self, exact: bool = False) -> Callable[..., Any]:
        """exact: for fp64 inputs, f32 in the program is f64 too."""
        name = f"<fuzz {self.seed}{' exact' if exact else ''}>"
        source = self.source
        for word in PRECISIONS if exact else ():
            source = source.replace(word, ".double()")
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        exec(compile(source, name, "exec"), scope)
        return scope["program"]


def make_input(rng: random.Random, generator: torch.Generator, dtype: torch.dtype, special: bool) -> torch.Tensor:
    rank = rng.choice([0, 1, 2, 2, 3, 3, 4])
    sizes = [rng.choice([1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64, 0 if rng.random() < 0.05 else 6]) for _ in range(rank)]
    x = torch.randn(sizes, generator=generator, dtype=torch.float64)
    if not dtype.is_floating_point:
        x = x * rng.choice([3, 3, 100])
        x = x.abs() if dtype == torch.uint8 else x
    if special and x.numel() and dtype.is_floating_point:
        values = torch.tensor(
            [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e15, -1e-15, 65504.0], dtype=torch.float64
        )
        where = torch.randint(0, 24, sizes, generator=generator)
        x = torch.where(where < 8, values[where.clamp(max=7)], x)
    x = x > 0 if dtype == torch.bool else x.long().to(dtype) if not dtype.is_floating_point else x.to(dtype)
    form = rng.random()
    if form < 0.15 and rank >= 2:
        return x.transpose(0, -1)
    if form < 0.25 and rank >= 1:
        return torch.cat([x, x], -1)[..., ::2]
    if form < 0.32 and rank >= 1 and sizes[0] == 1:
        return x.expand(4, *sizes[1:])
    if form < 0.38 and rank == 4:
        return x.to(memory_format=torch.channels_last)
    return x


WRITES = re.compile(r"^([tx]\d+)(?=[.\[].*(_\(|\] [-+*/]?= ))")


def by_an_alias(line: str, rng: random.Random) -> str:
    """A write goes through `.data` or `.detach()` now and then: the same values, other version counters."""
    return WRITES.sub(rng.choice([r"\1.data", r"\1.detach()"]), line) if rng.random() < 0.2 else line


FAMILIES = [UNARY, BINARY, REDUCE, VIEWS, INPLACE, INDEX, NN, INTEGER]


def generate(seed: int, data: bool = False) -> Program:
    """A program that eager runs: lines that raise are dropped as they are made. data: sizes follow from it, too."""
    rng = random.Random(seed)
    of_data = random.Random(seed * 7 + 3)
    integers = rng.random() < 0.15
    dtype = rng.choice(INTEGERS if integers else FLOATS)
    count = rng.randint(1, 3)
    mixed = rng.random() < 0.15
    special = rng.random() < 0.1
    dtypes = [rng.choice(FLOATS + INTEGERS) if mixed else dtype for _ in range(count)]
    same_shape = rng.random() < 0.5

    def inputs() -> list[torch.Tensor]:
        made = []
        for i in range(count):
            r = random.Random(seed + 1 + (0 if same_shape else i))
            made.append(make_input(r, torch.Generator().manual_seed(seed + i), dtypes[i], special))
        return made

    pool = {f"x{i}": x for i, x in enumerate(inputs())}
    lines: list[str] = []
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    for step in range(rng.randint(2, 14)):
        weights = [20, 20, 18, 22, 9, 8, 0, 30] if integers else [28, 20, 16, 20, 8, 8, 7, 1]
        kind = rng.choices(FAMILIES, weights)[0]
        if data and of_data.random() < 0.25:
            kind = DATA
        names = list(pool)
        a, b = rng.choice(names), rng.choice(names)
        dim = max(pool[a].dim(), 1)
        d, e = rng.randrange(dim), rng.randrange(dim)
        template = rng.choice(kind)
        n = pool[a].shape[d] if pool[a].dim() else 1
        text = template.format(a=a, b=b, d=d, e=e, n=n, m=pool[a].dim())
        statement = kind is INPLACE
        if statement and (overlaps_itself(pool[a]) or (not pool[a].is_floating_point() and rng.random() < 0.7)):
            continue
        line = text if statement else f"t{step} = {text}"
        saved = {k: v.clone() for k, v in pool.items()}
        try:
            local = dict(scope) | pool
            exec(line, local)
            made = pool[a] if statement else local[f"t{step}"]
            if not isinstance(made, torch.Tensor) or made.numel() > 100_000 or made.is_complex():
                continue
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            for k, v in saved.items():
                if not overlaps_itself(pool[k]):
                    pool[k].copy_(v)
            continue
        if not statement:
            pool[f"t{step}"] = made
        lines.append(line)
    results = [n for n in pool if n.startswith("t")][-3:] or ["x0 + 0"]
    other = random.Random(seed * 13 + 5)
    lines = [by_an_alias(line, other) for line in lines]
    body = "".join(f"    {line}\n" for line in lines)
    source = f"def program({', '.join(f'x{i}' for i in range(count))}):\n{body}    return ({', '.join(results)},)\n"
    return Program(source, inputs, seed, lines)


def overlaps_itself(t: torch.Tensor) -> bool:
    span = 0
    for stride, size in sorted((s, n) for s, n in zip(t.stride(), t.shape, strict=True) if n > 1):
        if stride <= span:
            return True
        span += stride * (size - 1)
    return False


class CompiledOnce:
    """One callable for all calls of a program."""

    def __init__(self, compile_fn: Callable[..., Any]) -> None:
        self.compile_fn = compile_fn
        self.compiled: Callable[..., Any] | None = None

    def __call__(self, function: Callable[..., Any], **options: object) -> Callable[..., Any]:
        if self.compiled is None:
            self.compiled = self.compile_fn(function, **options)
        return self.compiled


def resized(x: torch.Tensor, sizes: dict[int, int]) -> torch.Tensor:
    """Other sizes in the place of these, with the order of the strides kept."""
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    y = x.permute(order)
    for d in range(y.dim()):
        n = sizes.get(y.shape[d], y.shape[d])
        if n != y.shape[d]:
            y = y.index_select(d, torch.arange(n) % y.shape[d])
    return y.permute([order.index(d) for d in range(x.dim())])


def at_other_sizes(program: Program) -> list[Program]:
    """The program's calls with one size of its arguments changed everywhere, as far as eager runs them."""
    sizes = sorted({n for x in program.make_inputs() for n in x.shape if n > 0})
    out = []
    # Eager's attention over no heads divides by their number, which ends the process.
    least = 1 if "scaled_dot_product_attention" in program.source else 0
    for old, new in [(n, to) for n in sizes for to in (0, 1, n + 2) if to >= least]:

        def inputs(change: dict[int, int] = {old: new}) -> list[torch.Tensor]:  # noqa: B006
            return [resized(x, change) for x in program.make_inputs()]

        try:
            with torch.no_grad():
                program.function()(*inputs())
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            continue
        out.append(Program(program.source, inputs, program.seed, program.lines))
    return random.Random(program.seed).sample(out, min(3, len(out)))


def geometry(t: torch.Tensor) -> tuple[object, ...]:
    return (t.dtype, t.shape) + ((t.stride(), t.storage_offset()) if t.numel() > 1 else ())


def same_up_to_rounding(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, eps: float, floor: float) -> str:
    """'' when got is as near to the fp64 run as eager is, within a factor and a floor; else what differs.

    eps: of the least precise numbers on the way. floor: what a difference may always be."""
    if geometry(got) != geometry(eager):
        return f"geometry {geometry(got)} against {geometry(eager)}"
    if not eager.is_floating_point():
        return "" if torch.equal(got, eager) else "integer values differ"
    a, b, x = got.double(), eager.double(), exact.double()
    special = ~torch.isfinite(b) | ~torch.isfinite(x)
    agree = (a == b) | (a.isnan() & b.isnan())
    ordinary = ~special
    scale = x[ordinary].abs().max().item() if bool(ordinary.any()) else 0.0
    bound = 2 * (b - x).abs() + 16 * eps * (x.abs() + scale * 0.05) + floor
    wrong = ~agree & ((a - x).abs() > bound) & ordinary | special & ~agree & ~((a - b).abs() <= 16 * eps * b.abs())
    if eps > 1e-4:  # 16 roundings are much there; and f16 overflows in eager where f32 between operators does not
        wrong &= ordinary | ~torch.isfinite(x)
        ours, theirs = (a - x)[ordinary].norm().item(), (b - x)[ordinary].norm().item()
        if ours > 2 * theirs + 2 * eps * x[ordinary].norm().item() + floor * ordinary.sum().item():
            return f"error {ours} against eager's {theirs}"
    if not bool(wrong.any()):
        return ""
    i = int(wrong.flatten().nonzero()[0])
    ours, theirs, best = (t.flatten()[i].item() for t in (a, b, x))
    return f"{int(wrong.sum())} of {a.numel()} values: {ours} against eager {theirs}, fp64 {best}"


def half_precision(program: Program) -> bool:
    return any(x.dtype in (torch.float16, torch.bfloat16) for x in program.make_inputs())


def magnitude(tensors: list[torch.Tensor]) -> float:
    """The largest ordinary number: what is left after a cancellation is known to eps times this."""
    return max(
        (t.double().nan_to_num(0, 0, 0).abs().clamp(max=100).max().item() for t in tensors if t.numel()), default=0.0
    )


def discontinuous(program: Program) -> bool:
    """Steps at which a rounding difference may become a different value: eager itself is the reference."""
    return any(word in program.source for word in DISCONTINUOUS)


def run_one(program: Program, compile_fn: Callable[..., Any], versions: bool = True) -> str:
    """'' or what is wrong with the compiled program. 16-bit programs whose values jump run with every rounding kept.

    versions: whether compile_fn moves version counters at all."""
    function, exact_function = program.function(), program.function(exact=True)
    eager_in, fast_in = program.make_inputs(), program.make_inputs()
    exact_in = [x.double() if x.is_floating_point() else x for x in program.make_inputs()]
    # Python numbers and integers meet as f32.
    precisions = [x.dtype if x.is_floating_point() else torch.float32 for x in eager_in]
    eps = max(torch.finfo(d).eps for d in precisions + [d for word, d in PRECISIONS.items() if word in program.source])
    floor = eps * magnitude(eager_in)
    jumps = discontinuous(program)
    options = {"options": {"strict_numerics": True}} if jumps and half_precision(program) else {}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message="flashover: ")  # a failure of the compiler that became an eager run
        # A size that follows from data is not what it usually is: the call is eager's, as it is to be.
        warnings.filterwarnings("ignore", message="flashover: .* (compiled code needs|found) ")
        eager = function(*eager_in)
        torch.set_default_dtype(torch.float64)  # what the program makes
        try:
            exact = exact_function(*exact_in)
        except (RuntimeError, IndexError, ValueError):
            exact, exact_in = eager, eager_in
        finally:
            torch.set_default_dtype(torch.float32)
        if any(e.shape != x.shape for e, x in zip(eager, exact, strict=True)):
            exact, exact_in = eager, eager_in
        got = compile_fn(function, **options)(*fast_in)

    def differs(g: torch.Tensor, e: torch.Tensor, x: torch.Tensor) -> str:
        problem = same_up_to_rounding(g, e, e if jumps else x, eps, floor)
        # Where the reference jumps, either may be right.
        return same_up_to_rounding(g, e, x, eps, floor) if problem and jumps else problem

    for i, (g, e, x) in enumerate(zip(got, eager, exact, strict=True)):
        if problem := differs(g, e, x):
            return f"output {i}: {problem}"
        if sharing(e, [*eager_in, *eager]) != sharing(g, [*fast_in, *got]):
            return (
                f"output {i}: shares memory with {sharing(g, [*fast_in, *got])}, not {sharing(e, [*eager_in, *eager])}"
            )
    for j, (f, o, x) in enumerate(zip(fast_in, eager_in, exact_in, strict=True)):
        if problem := differs(f, o, x):
            return f"input {j} after the call: {problem}"
        if versions and f._version != o._version:
            return f"input {j} after the call: version {f._version}, not {o._version}"
    for i, (g, e) in enumerate(zip(got, eager, strict=True)):
        if versions and sharing(e, eager_in) and g._version != e._version:
            return f"output {i}, an alias of an input: version {g._version}, not {e._version}"
    return ""


def sharing(t: torch.Tensor, others: list[torch.Tensor]) -> list[int]:
    if t.numel() == 0:
        return []
    return [
        i
        for i, o in enumerate(others)
        if o.numel() and o.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()
    ]


def sanitized_child(options: argparse.Namespace) -> int:
    """The same run in a child whose kernels are sanitized; prints what the sanitizers say of the first fault."""
    import sanitized

    if reason := sanitized.missing():
        print(f"cannot sanitize: {reason}")
        return 1
    arguments = [__file__, "--seconds", str(options.seconds), "--start", str(options.start)]
    arguments += ["--count", str(options.count)] if options.only is None else ["--only", str(options.only)]
    with tempfile.TemporaryDirectory() as folder:
        done = sanitized.run(arguments, Path(folder), options.isa, options.seconds + 300)
    print(done.stdout, end="")
    if done.returncode != 0:
        print(done.stderr[-8000:])
    return done.returncode


def main() -> int:
    import flashover

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--start", "--seed", type=int, default=int(time.time()), help="the first seed")
    parser.add_argument("--only", type=int, help="run this one seed and print the program")
    parser.add_argument("--count", type=int, default=10**9, help="so many programs at most")
    parser.add_argument("--sanitize", action="store_true", help="kernels under ASan and UBSan, in a child")
    parser.add_argument("--dynamic", action="store_true", help="sizes of arguments are symbols")
    parser.add_argument("--isa", default="", help="with --sanitize: FLASHOVER_ISA of the child")
    options = parser.parse_args()
    if options.sanitize:
        return sanitized_child(options)
    if name := os.environ.get("FLASHOVER_TEST_LOCALE"):
        locale.setlocale(locale.LC_ALL, name)
    first, count = (options.only, 1) if options.only is not None else (options.start, options.count)
    end, done, failed, eager = time.time() + options.seconds, 0, 0, 0
    for seed in range(first, first + count):
        program = generate(seed, data=options.dynamic)
        if os.environ.get("FLASHOVER_SANITIZED"):  # the sanitizers end the process: the last seed is the one
            print(f"seed {seed}", file=sys.stderr, flush=True)
        if options.only is not None:
            print(program.source, [(x.dtype, x.shape, x.stride()) for x in program.make_inputs()])
        graphs = flashover.compile_stats()["graphs"]
        compiled = CompiledOnce(functools.partial(flashover.compile, dynamic=True if options.dynamic else None))
        problem = ""
        for call in [program, *(at_other_sizes(program) if options.dynamic else [])]:
            try:
                problem = run_one(call, compiled)
            except Exception as failure:  # a crash of the compiled program is a finding like any other
                problem = f"{type(failure).__name__}: {failure}"
            if problem:
                problem = f"{[tuple(x.shape) for x in call.make_inputs()]}: {problem}"
                break
        done += 1
        eager += flashover.compile_stats()["graphs"] == graphs
        if problem:
            failed += 1
            print(f"seed {seed}: {problem}\n{program.source}", flush=True)
        flashover.reset()
        if time.time() > end:
            break
    print(f"{done} programs, {failed} wrong, {eager} ran eager")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
