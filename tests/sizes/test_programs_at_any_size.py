"""One compilation of a graph with size symbols, run at many sizes, against eager at those sizes.

The symbolic graphs are made from traces at several sizes (support/symbolic.py)."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support.symbolic import Program, check_at_every_size
from torch import Tensor


def norm_block(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, (64,), w, b)) + x


def transformer_block(x: Tensor, qkv: Tensor, out: Tensor, up: Tensor, down: Tensor) -> Tensor:
    n, length, width = x.shape
    q, k, v = (p.view(n, length, 4, width // 4).transpose(1, 2) for p in F.linear(x, qkv).chunk(3, -1))
    attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, width)
    x = F.layer_norm(x + F.linear(attended, out), (width,))
    return F.layer_norm(x + F.linear(F.gelu(F.linear(x, up)), down), (width,))


def rotary(x: Tensor) -> Tensor:
    one, two = x.chunk(2, -1)
    return torch.cat([-two, one], -1) * x.cos() + x


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 4.0, -1) @ v


def written(x: Tensor) -> Tensor:
    x.mul_(2).add_(1)
    return x.sum(0)


PROGRAMS = {
    "pointwise": Program(lambda x: torch.sin(x) * 2 + x.abs(), "s 64"),
    "pointwise 1d": Program(lambda x: (x.exp() + 1).log(), "s"),
    "pointwise 2d": Program(lambda x, y: x * y + torch.relu(x - y), "s t; s t"),
    "inner symbol": Program(lambda x: x.tanh() * 3, "5 s"),
    "broadcast row": Program(lambda x, y: x + y, "s 64; 64"),
    "broadcast column": Program(lambda x, y: x * y, "s 64; s 1"),
    "broadcast both": Program(lambda x, y: x + y, "s 1; 1 t"),
    "bfloat16": Program(lambda x: (x * 2 + 1).sigmoid(), "s 48 bf16", tolerance=1e-2),
    "integers": Program(lambda x: x * 3 // 2 + x % 4, "s 5 index"),
    "bools": Program(lambda x, y, m: torch.where(m, x, y), "s t; s t; s t bool"),
    "sum static dim": Program(lambda x: x.sum(1), "s 64"),
    "sum symbolic dim": Program(lambda x: x.sum(0), "s 64"),
    "sum inner symbol": Program(lambda x: x.sum(1), "20 s"),
    "sum all": Program(lambda x: x.sum(), "s 64", tolerance=1e-4),
    "sum two symbols": Program(lambda x: (x.sum(0), x.sum(1), x.sum()), "s t", tolerance=1e-4),
    "mean symbolic": Program(lambda x: (x.mean(0), x.mean(1), x.mean()), "s 64"),
    "amax argmax": Program(lambda x: (x.amax(0), x.argmax(0), x.amin(1), x.argmin(1)), "s 33", least=1),
    "var symbolic": Program(lambda x: (x.var(0), x.std(1)), "s 40", tolerance=1e-4),
    "any all": Program(lambda m: (m.any(0), m.all(1)), "s 9 bool"),
    "softmax static": Program(lambda x: torch.softmax(x, -1), "s 50"),
    "softmax symbolic": Program(lambda x: torch.softmax(x, -1), "12 s"),
    "softmax two symbols": Program(lambda x: torch.log_softmax(x * 2, -1), "s t"),
    "softmax dim 0": Program(lambda x: torch.softmax(x, 0), "s 50"),
    "layer_norm": Program(norm_block, "s 64; 64 param; 64 param"),
    "layer_norm 3d": Program(norm_block, "s t 64; 64 param; 64 param"),
    "group_norm": Program(lambda x: F.group_norm(x, 4), "s 8 6 6", tolerance=1e-4),
    "batch_norm": Program(lambda x, m, v: F.batch_norm(x, m, v.abs() + 1), "s 8 5 5; 8 param; 8 param", tolerance=1e-4),
    "rms_norm": Program(lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w, "s t 32; 32 param"),
    "view": Program(lambda x: x.view(x.shape[0], 8, 8).transpose(1, 2) + 1, "s 64"),
    "reshape to rows": Program(lambda x: x.reshape(-1, 4).sin(), "s t 4"),
    "reshape after transpose": Program(lambda x: x.transpose(0, 1).reshape(-1) * 2, "s t"),
    "heads": Program(lambda x: x.view(x.shape[0], x.shape[1], 4, 8).transpose(1, 2).reshape(-1, 8).cos(), "s t 32"),
    "flatten": Program(lambda x: torch.relu(x).flatten(1), "s 3 5"),
    "permute": Program(lambda x: x.permute(2, 0, 1).contiguous() + 1, "s t 7"),
    "cat static dim": Program(lambda x, y: torch.cat([x, y * 2], 1), "s 5; s 7"),
    "cat symbolic dim": Program(lambda x, y: torch.cat([x, y * 2]) + 1, "s 6; t 6"),
    "stack": Program(lambda x, y: torch.stack([x, y], 1).exp(), "s 6; s 6"),
    "slice": Program(lambda x: x[:, 3:9] * 2 + x[:, :6], "s 12"),
    "slice symbolic": Program(lambda x: x[1:] - x[:-1], "s 12", least=1),
    "pad": Program(lambda x: F.pad(x, (1, 2, 0, 3), value=5.0) * 2, "s t"),
    "flip": Program(lambda x: x.flip(0) + x.flip(1), "s 6"),
    "select": Program(lambda x: x[0] * x[-1], "s 11", least=1),
    "unsqueeze expand": Program(lambda x, y: x.unsqueeze(1).expand(-1, 5, -1) * y, "s t; 5 1"),
    "mm": Program(lambda x, w: torch.relu(x @ w), "s 64; 64 32", tolerance=1e-4),
    "mm symbolic inner": Program(lambda x, y: x @ y + 1, "8 s; s 5", tolerance=1e-3),
    "linear": Program(lambda x, w, b: F.gelu(F.linear(x, w, b)), "s 128; 256 128 param; 256 param", tolerance=1e-4),
    "linear 3d": Program(lambda x, w, b: F.linear(x, w, b) * 2, "s t 32; 48 32 param; 48 param", tolerance=1e-4),
    "bmm": Program(lambda x, y: torch.bmm(x, y).sum(-1), "s 6 9; s 9 4", tolerance=1e-4),
    "conv2d": Program(lambda x, w: torch.relu(F.conv2d(x, w, padding=1)), "s 3 9 9; 8 3 3 3 param", tolerance=1e-4),
    "conv2d strided": Program(
        lambda x, w, b: F.silu(F.conv2d(x, w, b, stride=2)), "s 16 8 8; 24 16 3 3 param; 24 param", tolerance=1e-4
    ),
    "conv1d": Program(lambda x, w: F.conv1d(x, w) + 1, "s 4 20; 6 4 3 param", tolerance=1e-4),
    "max_pool": Program(lambda x: F.max_pool2d(x, 2) + 1, "s 3 8 8"),
    "avg_pool": Program(lambda x: F.avg_pool2d(x, 3, 2, 1), "s 3 9 9"),
    "global pool": Program(lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1), "s 5 6 6"),
    "embedding": Program(lambda i, w: F.embedding(i, w) * 2, "s t index; 10 16 param"),
    "gather": Program(lambda x, i: x.gather(1, i) + 1, "s 12; s 4 index"),
    "index_select": Program(lambda x, i: x.index_select(0, i), "10 6; s index"),
    "attention": Program(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v), "s 2 t 16; s 2 t 16; s 2 t 16", least=1
    ),
    "attention causal": Program(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), "2 2 s 16; 2 2 s 16; 2 2 s 16", least=1
    ),
    "plain attention": Program(plain_attention, "s t 16; s t 16; s t 16", tolerance=1e-4),
    "transformer": Program(
        transformer_block, "s t 32; 96 32 param; 32 32 param; 64 32 param; 32 64 param", tolerance=1e-4, least=1
    ),
    "rotary": Program(rotary, "s t 16"),
    "cumsum static": Program(lambda x: x.cumsum(1), "s 20", tolerance=1e-4),
    "cumsum symbolic": Program(lambda x: x.cumsum(0), "s 6", tolerance=1e-3),
    "cumsum inner symbol": Program(lambda x: x.cumsum(1) * 2, "6 s", tolerance=1e-3),
    "arange": Program(lambda x: x + torch.arange(x.shape[1]), "s t"),
    "mask": Program(lambda x: x.masked_fill(torch.ones_like(x, dtype=torch.bool).triu(1), 0.0), "s t"),
    "written input": Program(written, "s 24"),
    "alias": Program(lambda x: (x.view(-1), x[1:], x.t(), x + 1), "s t", least=1),
    "alias in the middle": Program(lambda x: ((x * 2)[..., -1], (x + 1)[1:], x.exp().narrow(0, 1, 1)), "s t", least=2),
    "aliases of one result": Program(lambda x: (lambda y: (y[1:], y[:-1], y[0]))(x * 2), "s t", least=1),
    "index under a pad": Program(lambda x, i: F.pad(x.permute(2, 0, 1)[i], (1, -1)), "s t 10; 3 index", least=1),
    "dead and constant": Program(lambda x: (torch.zeros_like(x), torch.full((x.shape[0], 2), 3.0), x * 1), "s 5"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compilation_is_right_at_every_size(name: str) -> None:
    check_at_every_size(PROGRAMS[name])


LEAK_CHECKED = (
    *("pointwise", "inner symbol", "sum two symbols", "var symbolic", "softmax two symbols", "layer_norm 3d", "heads"),
    *("cat symbolic dim", "pad", "linear", "conv2d", "attention", "transformer", "mask"),
)
TEXTS = """
import json, sys
sys.path[:0] = {folders!r}
import torch
from flashover import _C
if {hint}:
    _C._set_size_hint({hint})
from test_programs_at_any_size import LEAK_CHECKED, PROGRAMS
from support.symbolic import symbolic_graph
texts = {{}}
for name in LEAK_CHECKED:
    torch.manual_seed(0)
    p = PROGRAMS[name]
    texts[name] = _C.compile_text(
        symbolic_graph(p.fn, p.inputs, p.symbols), {{"cache_dir": {cache!r}}}, texts=True).texts
print(json.dumps(texts))
"""


def without_binaries(text: str) -> str:
    """Their order is that in which their compilations end."""
    return re.sub(r"\n  binary .*| in b\d+", "", text)


def test_no_hint_becomes_a_fact(tmp_path: Path) -> None:
    """Graphs, kernels and plans are the same text whatever size symbols are taken for."""
    here = Path(__file__).parent

    def texts(hint: int) -> dict[str, list[list[str]]]:
        script = TEXTS.format(folders=[str(here), str(here.parent)], hint=hint, cache=str(tmp_path))
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    plain, other = texts(0), texts(131)
    for name in LEAK_CHECKED:
        for (stage, one), (_, two) in zip(plain[name], other[name], strict=True):
            assert without_binaries(one) == without_binaries(two), f"{name}: {stage} depends on the hint"
