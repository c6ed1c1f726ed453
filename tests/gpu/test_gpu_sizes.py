"""One compile serves every size on CUDA."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import sized_images
import sized_programs
import torch
import torch.nn.functional as F
from comparing import differ
from sized_programs import PROGRAMS, SIZES
from torch.utils._pytree import tree_leaves

import flashover

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compile_serves_every_size(name: str, mode: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for tensor in ("W", "B", "SCALE", "SHIFT", "TABLE"):
        monkeypatch.setattr(sized_programs, tensor, getattr(sized_programs, tensor).cuda())
    f, shape = PROGRAMS[name]
    flashover.reset()
    compiled = flashover.compile(f, dynamic=True, fullgraph=True, mode=mode)
    before = flashover.compile_stats()["graphs"]
    for n in SIZES + SIZES:
        x = torch.randn(shape(n), device="cuda")
        assert (wrong := differ(compiled(x), f(x), rtol=1e-4, atol=1e-4)) == "", f"size {n}: {wrong}"
    made = flashover.compile_stats()["graphs"] - before
    assert made == 1, f"compiled {made} times"


def attend(mask: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def f(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        seen = None
        if mask == "bool":
            seen = (torch.arange(k.shape[2], device=k.device) % 5 != 3)[None, None, None]
        elif mask == "added":
            seen = (torch.arange(k.shape[2], device=k.device) % 5 * -1.0).to(k.dtype)[None, None, None]
        return F.scaled_dot_product_attention(
            q, k, k.flip(2), seen, is_causal=mask == "causal", enable_gqa=q.shape[1] != k.shape[1]
        )

    return f


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "added"])
@pytest.mark.parametrize("heads", [8, 2])
def test_attention_over_a_growing_cache(heads: int, mask: str) -> None:
    """By kernels that make no plan for each size (cuDNN takes 40 ms for one), as right as eager's."""
    f = attend(mask)
    compiled = flashover.compile(f, dynamic=True, fullgraph=True)
    before = flashover.compile_stats()["frames"]
    for rows, keys in [(2, 33), (7, 48), (16, 16), (5, 257)]:
        q = torch.randn(2, 8, rows, 64, device="cuda", dtype=torch.bfloat16)
        k = torch.randn(2, heads, keys, 64, device="cuda", dtype=torch.bfloat16)
        want, got, exact = f(q, k), compiled(q, k), f(q.double(), k.double())
        assert got.shape == want.shape and got.stride() == want.stride()
        allowed = 2 * (want.double() - exact).abs().max() + 1e-2
        assert (got.double() - exact).abs().max() <= allowed, (rows, keys)
    assert flashover.compile_stats()["frames"] - before == 1


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", sized_images.PROGRAMS)
def test_images(name: str, train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for tensor in sized_images.TENSORS:
        monkeypatch.setattr(sized_images, tensor, getattr(sized_images, tensor).cuda())
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    f, shape = sized_images.PROGRAMS[name]
    compiled = flashover.compile(f, fullgraph=True, options={"recompile_limit": 64})
    before = flashover.compile_stats()["graphs"]
    for n in (5, 2, 3, 8, 4, 11, 9):
        x = torch.randn(shape(n), device="cuda", requires_grad=train)
        got, want = tree_leaves(compiled(x)), tree_leaves(f(x))
        assert (wrong := differ(got, want, rtol=1e-3, atol=1e-3)) == "", f"size {n}: {wrong}"
        if not train:
            continue
        (a,), (b,) = (torch.autograd.grad(sized_images.weighed(results), x) for results in (got, want))
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert flashover.compile_stats()["graphs"] - before <= 2


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", sized_images.MODULES)
def test_training_on_images(name: str, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    module = sized_images.MODULES[name]().cuda()
    if last:
        module.to(memory_format=torch.channels_last)
    trained = sized_images.Trained(module)
    before = flashover.compile_stats()["graphs"]
    for n in (5, 2, 3, 8, 4, 11, 9):
        x = torch.randn(sized_images.rectangles(n), device="cuda")
        if last:
            x = x.to(memory_format=torch.channels_last)
        trained.check(x, f"size {n}", 1e-3)
    assert flashover.compile_stats()["graphs"] - before <= 2


@pytest.mark.parametrize("train", [False, True])
def test_half_precision_convolutions(train: bool) -> None:
    """Channels last, ReLU and bias in cuDNN's call, points as products, a padded vocabulary: as of known sizes."""
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 2, 1, groups=64),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 1001),
    ).cuda()
    model.train(train)
    if not train:
        model.bfloat16()
    compiled = flashover.compile(model, fullgraph=True)
    exact = copy.deepcopy(model).double()
    before = flashover.compile_stats()["graphs"]
    for n, h, w in ((4, 8, 12), (2, 16, 16), (3, 33, 7), (1, 24, 40), (5, 1, 1), (1, 1, 64)):
        if train and h * w == 1:
            continue
        if not train and (h, w) == (1, 1):  # all before it have more than one row
            assert flashover.compile_stats()["graphs"] - before <= 2
        x = torch.randn(n, 16, h, w, device="cuda", dtype=torch.float32 if train else torch.bfloat16)
        with torch.set_grad_enabled(train), torch.autocast("cuda", torch.bfloat16, enabled=train):
            got, want = compiled(x), exact(x.double())
        torch.testing.assert_close(got.double(), want.double(), rtol=5e-2, atol=5e-2)
        if train:
            model.zero_grad()
            exact.zero_grad()
            got.float().square().mean().backward()
            want.double().square().mean().backward()
            for a, b in zip(model.parameters(), exact.parameters(), strict=True):
                torch.testing.assert_close(a.grad.double(), b.grad.double(), rtol=0.1, atol=5e-2)
    # What is one row high or one column wide after the strided convolution lies otherwise: a version each.
    assert flashover.compile_stats()["graphs"] - before <= 4


DATA_SIZED: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "rows of a mask": lambda x, m: torch.relu(x[m] * 2 + 1),
    "sum of a mask": lambda x, m: x[m].sum(0),
    "where and index_add": lambda x, m: x.index_add(0, torch.where(m)[0], x[torch.where(m)[0]] * 3),
    "two masks": lambda x, m: torch.cat([x[m], x[~m] * 2]),
    "a count": lambda x, m: torch.arange(int(m.sum()), device=x.device) * 2 + x.sum(),
    "softmax": lambda x, m: torch.softmax(x[m], -1),
    "product": lambda x, m: x[m] @ x.t(),
    "write": lambda x, m: x.masked_scatter(m.unsqueeze(1), x[m].tanh()),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", DATA_SIZED)
def test_sizes_that_follow_from_data(name: str, gradients: bool) -> None:
    """What finds a size waits for the device; what follows is launched with it."""
    f = DATA_SIZED[name]
    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()
    for n in (12, 12, 0, 1, 64, 37):
        x = torch.randn(64, 16, device="cuda", requires_grad=gradients)
        mask = torch.arange(64, device="cuda") < n
        with torch.set_grad_enabled(gradients):
            got, want = compiled(x, mask), f(x, mask)
            assert (wrong := differ(got, want, rtol=1e-4, atol=1e-4, strides=n > 1)) == "", f"{n} rows: {wrong}"
            if not gradients:
                continue
            (g,) = torch.autograd.grad(got.float().sum(), x)
            (w,) = torch.autograd.grad(want.float().sum(), x)
            assert (wrong := differ(g, w, rtol=1e-4, atol=1e-4)) == "", f"gradient, {n} rows: {wrong}"
    assert flashover.compile_stats()["graphs"] - before["graphs"] <= 2
    assert flashover.compile_stats()["eager_calls"] == before["eager_calls"]
