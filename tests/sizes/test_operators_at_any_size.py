"""Operators with size symbols: as test_programs_at_any_size, one or a few at a time."""

import pytest
import torch
import torch.nn.functional as F
from support.symbolic import Program, check_at_every_size, compiled

OPERATORS = {
    "conv_transpose": Program(
        lambda x, w: F.conv_transpose2d(x, w, stride=2), "s 4 5 5; 4 6 3 3 param", tolerance=1e-4
    ),
    "depthwise": Program(lambda x, w: F.conv2d(x, w, groups=8, padding=1), "s 8 9 9; 8 1 3 3 param", tolerance=1e-4),
    "conv1x1": Program(lambda x, w: F.conv2d(x, w), "s 16 7 7; 32 16 1 1 param", tolerance=1e-4),
    "conv user weight": Program(lambda x, w: F.conv2d(x, w), "s 16 7 7; 32 16 3 3", tolerance=1e-4),
    "patches": Program(lambda x, w: F.conv2d(x, w, stride=4), "s 3 16 16; 32 3 4 4 param", tolerance=1e-4),
    "nearest": Program(lambda x: F.interpolate(x, scale_factor=2), "s 3 5 5"),
    "bilinear": Program(lambda x: F.interpolate(x, size=(9, 9), mode="bilinear"), "s 3 5 5", tolerance=1e-4),
    "avg3d": Program(lambda x: F.avg_pool1d(x, 3), "s 3 12"),
    "adaptive": Program(lambda x: F.adaptive_avg_pool2d(x, 3), "s 3 7 7", tolerance=1e-4),
    "scatter_add": Program(lambda x, i, y: x.scatter_add(1, i, y), "s 12; s 5 index; s 5", tolerance=1e-4),
    "scatter": Program(lambda x, i, y: x.scatter(1, i[:, :1], y), "s 12; s 5 index; s 5"),
    "index_put": Program(lambda x, i, y: x.index_put((i,), y, accumulate=True), "12 4; s index; s 4", tolerance=1e-4),
    "index_add": Program(lambda x, i, y: x.index_add(0, i, y), "12 4; s index; s 4", tolerance=1e-4),
    "index copy": Program(
        lambda x, i, y: x.index_copy(0, i[:2] * 0 + torch.arange(2), y[:2]), "12 4; s index; s 4", least=2
    ),
    "advanced": Program(lambda x, i: x[i] * 2, "12 4; s t index"),
    "topk": Program(lambda x: x.topk(3, -1)[0] + 1, "s 12"),
    "sort": Program(lambda x: x.sort(-1)[0] * 2, "s t"),
    "roll": Program(lambda x: x.roll(2, 1) + x.roll(1, 0), "s 9"),
    "roll sym": Program(lambda x: x.roll(1, 0) * 2, "s 9"),
    "repeat": Program(lambda x: x.repeat(2, 3) + 1, "s 4"),
    "repeat_interleave": Program(lambda x: x.repeat_interleave(3, 1) + 1, "s 4"),
    "unfold": Program(lambda x: x.unfold(1, 3, 2).sum(-1), "s 11", tolerance=1e-4),
    "einsum": Program(lambda x, y: torch.einsum("bij,bkj->bik", x, y) + 1, "s t 8; s 5 8", tolerance=1e-4),
    "baddbmm": Program(lambda c, x, y: torch.baddbmm(c, x, y), "s 6 7; s 6 5; s 5 7", tolerance=1e-4),
    "matmul bcast": Program(lambda x, w: x @ w, "s t 8; 8 6", tolerance=1e-4),
    "cross_entropy": Program(lambda x, i: F.cross_entropy(x, i), "s 12; s index", tolerance=1e-4),
    "mse": Program(lambda x, y: F.mse_loss(x, y), "s t; s t", tolerance=1e-4),
    "kl": Program(
        lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"), "s 8; s 8", tolerance=1e-4
    ),
    "cosine": Program(lambda x, y: F.cosine_similarity(x, y), "s 8; s 8", tolerance=1e-4),
    "normalize": Program(lambda x: F.normalize(x, dim=0), "s 8", tolerance=1e-4),
    "dropout eval": Program(lambda x: F.dropout(x, 0.5, training=False) + 1, "s 8"),
    "tril": Program(lambda x: x.tril() + x.triu(1) * 2, "s t"),
    "clamp": Program(lambda x: x.clamp(-0.5, 0.5).round(), "s t"),
    "logsumexp": Program(lambda x: (x.logsumexp(0), x.logsumexp(1)), "s t", tolerance=1e-4),
    "cumprod": Program(lambda x: (x * 0.1 + 1).cumprod(1), "s 9", tolerance=1e-3),
    "cummax": Program(lambda x: x.cummax(0)[0], "s 9"),
    "diff": Program(lambda x: x.diff(dim=0) * 2, "s 9", least=1),
    "diagonal": Program(lambda x: x.diagonal(0, 1, 2) * 2, "s 5 5"),
    "outer": Program(lambda x, y: torch.outer(x, y) + 1, "s; t"),
    "unbind": Program(lambda x: [a * 2 for a in x.unbind(1)], "s 3 4"),
    "split": Program(lambda x: [a * 2 for a in x.split(2, 1)], "s 5"),
    "chunk sym": Program(lambda x: torch.cat([x, x], 0).chunk(2, 0)[1] * 2, "s 5"),
    "one_hot": Program(lambda i: F.one_hot(i, 12).float() * 2, "s index"),
    "cdist": Program(lambda x, y: torch.cdist(x, y), "s 6; t 6", tolerance=1e-3),
    "pixel_shuffle": Program(lambda x: F.pixel_shuffle(x, 2) * 2, "s 8 3 3"),
    "instance_norm": Program(lambda x: F.instance_norm(x), "s 4 6 6", tolerance=1e-4),
    "glu": Program(lambda x: F.glu(x, -1), "s 8"),
    "prelu": Program(lambda x, w: F.prelu(x, w), "s 8 3; 8 param"),
    "crop and pad": Program(lambda x: F.pad(x[:, 1:-1, 2:-2] * 2, (2, 2, 1, 1)), "s 5 t", least=6),
    "avgpool pad sym": Program(lambda x: F.avg_pool1d(x, 3, 1, 1) * 2, "2 3 s", tolerance=1e-4, least=1),
    "conv1d sym": Program(lambda x, w: F.conv1d(x, w, padding=1), "s 4 t; 6 4 3 param", tolerance=1e-4, least=1),
    "conv2d sym": Program(
        lambda x, w: F.conv2d(x, w, padding=1) * 2, "2 4 s t; 6 4 3 3 param", tolerance=1e-4, least=1
    ),
    "var_mean": Program(lambda x: torch.var_mean(x, (0, 1)), "s t", tolerance=1e-4),
    "bn train": Program(
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), "s 8 4; 8 param; 8 param", tolerance=1e-3
    ),
    "layer_norm sym": Program(
        lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt(),
        "5 s",
        tolerance=1e-4,
    ),
    "as_strided": Program(lambda x: x.as_strided((3, 2), (2, 1)) * 2, "s 8", least=1),
    "in place slice": Program(lambda x: x[1:].mul_(2).sum(), "s 8", tolerance=1e-4),
    "in place col": Program(lambda x: (x[:, 2:4].add_(1), x.sum(0))[1], "s 8", tolerance=1e-4),
    "copy_": Program(lambda x, y: x.copy_(y * 2).sum(0), "s t; s t", tolerance=1e-4),
    "view dtype": Program(lambda x: x.view(torch.int32) + 1, "s 8"),
    "complex": Program(lambda x: torch.view_as_real(torch.view_as_complex(x) * 2j), "s 4 2"),
    "fft": Program(lambda x: torch.fft.rfft(x).abs(), "s 16", tolerance=1e-4, least=1),
    "rand": Program(lambda x: (torch.rand_like(x) >= 0).float() + x, "s 8"),
    "kv cache": Program(
        lambda k, n, q: torch.softmax(q @ torch.cat([k, n], 1).transpose(1, 2), -1) @ torch.cat([k, n], 1),
        "2 s 8; 2 1 8; 2 1 8",
        tolerance=1e-4,
    ),
    "gqa": Program(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        "2 4 s 16; 2 2 s 16; 2 2 s 16",
        tolerance=1e-4,
        least=1,
    ),
    "sdpa mask": Program(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        "s 2 t 16; s 2 t 16; s 2 t 16; s 1 t t",
        tolerance=1e-4,
        least=1,
    ),
    "sdpa qk": Program(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v), "2 2 s 16; 2 2 t 16; 2 2 t 16", tolerance=1e-4, least=1
    ),
    "deep pointwise": Program(lambda x: sum(torch.sin(x * i) for i in range(30)), "s t", tolerance=1e-4),
    "two dims sum": Program(lambda x: x.sum((0, 2)), "s 5 t", tolerance=1e-3),
    "mean keep": Program(lambda x: x - x.mean((1, 2), keepdim=True), "s t 4", tolerance=1e-4),
    "max dim": Program(lambda x: x.max(0), "s t", least=1),
    "count": Program(lambda x: x * x.shape[0] + x.numel(), "s 4"),
    "scale sqrt": Program(lambda x: (x @ x.transpose(0, 1)) / 8.0, "s 5", tolerance=1e-4),
    "eye": Program(lambda x: x + torch.eye(x.shape[0]), "s s"),
    "linspace": Program(lambda x: x + torch.arange(x.shape[0]).unsqueeze(1) * 0.5, "s 3"),
    "zeros cat": Program(lambda x: torch.cat([torch.zeros(x.shape[0], 1), x], 1), "s t"),
    "where idx": Program(lambda x, i: torch.where(i > 5, x, 0.0), "s t; s t index"),
    "embedding bag": Program(lambda i, w: F.embedding_bag(i, w, mode="sum"), "s 4 index; 10 8 param", tolerance=1e-4),
    "flatten heads sym": Program(
        lambda x: x.permute(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1) * 2, "s 4 t 8", least=1
    ),
    "window": Program(
        lambda x: x.view(x.shape[0] // 1, 2, 4, 2, 4, 3).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 4, 3) + 1, "s 8 8 3"
    ),
}


def test_an_index_out_of_range_names_the_size_of_the_call() -> None:
    program = Program(lambda x, i: x[i] + 1, "s 4; 3 index")
    executable = compiled(program)
    for rows in (5, 8, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(executable.run([x, torch.tensor([0, rows - 1, -rows])])[0], x[[0, -1, 0]] + 1)
        with pytest.raises(IndexError, match=rf"dimension 0 with size {rows}\b"):
            executable.run([x, torch.tensor([0, rows, 1])])


@pytest.mark.parametrize("name", OPERATORS)
def test_one_compilation_is_right_at_every_size(name: str) -> None:
    check_at_every_size(OPERATORS[name])
