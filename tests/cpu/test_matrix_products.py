"""flashover.product: products of any two matrices, on the AMX unit or by vectors (f32), and where programs take it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from cpu_features import HAS, split_f32

import flashover
from flashover import _C

pytestmark = pytest.mark.skipif(bool(_C.missing_feature("avx2")), reason="no AVX2 here")
AMX = HAS[torch.bfloat16]
needs_amx = pytest.mark.skipif(not AMX, reason="no AMX here")
DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=needs_amx)]
# Few rows, which nothing is packed for, and blocks of the inner dim (768) and of columns.
SIZES = [
    (1, 1, 1), (17, 64, 32), (33, 70, 45), (50, 800, 100), (70, 2500, 260), (600, 40, 70), (40, 500, 420),
    (1, 70, 45), (3, 2100, 37), (4, 16, 8), (8, 129, 50), (9, 1000, 16), (112, 256, 33), (113, 769, 1),
    (127, 1025, 34), (128, 200, 65), (11, 191, 35), (13, 192, 67), (6, 3001, 5),
]  # fmt: skip


def takes_panels() -> bool:
    """This machine's vectors are quicker than its libraries."""
    layer = torch.nn.Linear(128, 512).requires_grad_(False)
    return "flashover.panel_linear" in flashover.explain(layer)(torch.randn(32, 128)).text()


@pytest.fixture(autouse=True, params=[1, 2])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def product(
    a: torch.Tensor, b: torch.Tensor, added: torch.Tensor | None = None, activation: str = "none"
) -> torch.Tensor:
    return torch.ops.flashover.product(a, b, added, activation)


def lying(x: torch.Tensor, how: str) -> torch.Tensor:
    """The same numbers in another order."""
    if how == "columns":
        return x.mT.contiguous().mT
    if how == "wide":  # rows that lie apart
        return torch.cat([x, x[..., :3]], -1)[..., : x.shape[-1]]
    if how == "steps":  # neither dim is dense
        return torch.stack([x, x], -1)[..., 0]
    return x


def near(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor, added: torch.Tensor | None = None) -> None:
    """No further from the exact result than twice what ATen's is."""
    want, eager = a.double() @ b.double(), a @ b
    if added is not None:
        want, eager = want + added.double(), eager + added
    assert got.shape == want.shape and got.dtype == a.dtype and got.is_contiguous()

    def error(x: torch.Tensor) -> float:
        return float((x.double() - want).square().mean().sqrt())

    floor = (2e-7 if a.dtype == torch.float32 else 4e-3) * math.sqrt(a.shape[-1])
    assert error(got) <= 2 * error(eager) + floor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_strides(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, inner, columns = sizes
    torch.manual_seed(0)
    x, y = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
    orders = ("rows", "columns", "wide", "steps")
    for left, right in itertools.product(orders, orders):
        near(product(lying(x, left), lying(y, right)), x, y)


@pytest.mark.parametrize("dtype", DTYPES)
def test_added_and_activation(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 1000).to(dtype) / 30, torch.randn(1000, 50).to(dtype)
    for added in (torch.randn(50), torch.randn(40, 1), torch.randn(40, 50), torch.randn(50, 40).t(), torch.randn(1, 1)):
        near(product(x, y, added.to(dtype)), x, y, added.to(dtype))
    b = torch.randn(50).to(dtype)
    ways = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "sigmoid": torch.sigmoid}
    for name, way in ways.items():
        want = way((x.double() @ y.double()) + b.double())
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(product(x, y, b, name).double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for n, m, k, c in ((3, 40, 70, 33), (40, 5, 9, 7), (2, 100, 800, 40)):
        x, y, added = torch.randn(n, m, k).to(dtype), torch.randn(n, k, c).to(dtype), torch.randn(n, m, c).to(dtype)
        near(product(x, y), x, y)
        near(product(lying(x, "columns"), lying(y, "columns"), added), x, y, added)
        near(product(x[:1].expand(n, m, k), y, added[0]), x[:1].expand(n, m, k), y, added[0])
        near(product(x.transpose(0, 1).contiguous().transpose(0, 1), y), x, y)
        near(product(x, y[0].expand(n, k, c)), x, y[:1].expand(n, k, c))


@needs_amx
def test_f32_results_of_bf16_products() -> None:
    """The gradient of a weight that autocast rounded."""
    torch.manual_seed(0)
    for m, k, c in ((40, 500, 70), (17, 33, 20), (96, 2500, 64)):
        x, y = torch.randn(m, k).bfloat16(), torch.randn(k, c).bfloat16()
        want = x.double() @ y.double()
        for left, right in itertools.product(("rows", "columns", "steps"), repeat=2):
            wide = torch.ops.flashover.product(lying(x, left), lying(y, right), None, "none", True)
            torch.testing.assert_close(wide.double(), want, rtol=1e-5, atol=1e-5 * math.sqrt(k))


def test_empty() -> None:
    for m, k, c in ((0, 4, 5), (4, 0, 5), (4, 5, 0)):
        got = product(torch.ones(m, k), torch.ones(k, c), torch.full((c,), 2.0))
        assert torch.equal(got, torch.full((m, c), 2.0) + k)
    assert product(torch.ones(0, 3, 4), torch.ones(0, 4, 5)).shape == (0, 3, 5)


@pytest.mark.parametrize("inner", [40, 1000])
@pytest.mark.parametrize("order", ["rows", "columns", "steps"])
def test_every_size_of_number(inner: int, order: str) -> None:
    """Rows and columns that three bf16 numbers cannot hold are multiplied in f32, the others are not touched."""
    torch.manual_seed(0)
    x, y = torch.randn(37, inner), torch.randn(inner, 70)
    for row, scale in ((3, 1e-38), (5, 1e-42), (7, 1e30), (9, 1e36), (11, 0.0), (13, 1e-15), (15, 1e-28)):
        x[row] *= scale
    y[:, 3] *= 1e-15
    y[:, 34] *= 1e-38
    y[:, 40] = 0
    x[17, 1], x[19, 2], x[36, 3] = float("nan"), float("inf"), -float("inf")
    y[2, 65] = float("inf")
    want, exact = x @ y, x.double() @ y.double()
    got = product(lying(x, order), lying(y, order))
    assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isinf(), want.isinf())
    if not AMX:
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3, equal_nan=True)
        return
    size = (x.double().square().sum(1, keepdim=True) * y.double().square().sum(0, keepdim=True)).sqrt()
    sure = want.isfinite() & exact.isfinite()
    assert bool(((got - exact).abs() <= 1e-6 * size + 1e-44 * inner)[sure].all())


class Mlp(torch.nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 512), torch.nn.Linear(512, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.relu(self.up(x))).sin()


@pytest.mark.parametrize("bf16", [False, pytest.param(True, marks=needs_amx)])
def test_training(bf16: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Mlp(), torch.randn(2, 80, 256)
    exact = Mlp().double()
    exact.load_state_dict(model.state_dict())

    def gradients(call: object, inputs: torch.Tensor, auto: bool) -> list[torch.Tensor]:
        inputs = inputs.clone().requires_grad_()
        model.zero_grad(), exact.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=auto):
            out = call(inputs)  # type: ignore[operator]
        out.float().square().mean().mul(1000).backward()
        of = exact if call is exact else model
        return [out.detach(), inputs.grad, *(p.grad for p in of.parameters())]

    best, eager = gradients(exact, x.double(), False), gradients(model, x, bf16)
    options = split_f32(tmp_path, True)
    fast = flashover.compile(model, options=options)
    for got, own, want in zip(gradients(fast, x, bf16), eager, best, strict=True):
        assert got.dtype == own.dtype

        def error(t: torch.Tensor, want: torch.Tensor = want) -> float:
            return float((t - want).square().mean().sqrt())

        assert error(got) <= 2 * error(own) + 1e-6 * float(want.square().mean().sqrt())
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        text = flashover.explain(model, options=options)(x.clone().requires_grad_()).text()
    assert "flashover.product" in text or not AMX


def test_weights_without_copies() -> None:
    """Weights with a long inner dim are read as they lie; of a short one a packed copy is quicker for 5 to 127 rows."""
    if AMX or not takes_panels():
        pytest.skip("not what this machine's libraries lose to")
    for width, kept in ((256, False), (128, True)):
        model = Mlp(width).eval().requires_grad_(False)
        for rows in (1, 4, 32, 160):
            x = torch.randn(rows, width)
            text = flashover.explain(model)(x).text()
            assert ("flashover.pack_panels" in text) == (kept and rows == 32)
            assert "flashover.product" in text
        text = flashover.explain(model, dynamic=True)(torch.randn(40, width)).text()
        assert ("flashover.pack_panels" in text) == kept
        fast = flashover.compile(model, dynamic=True, fullgraph=True)
        for rows in (0, 1, 2, 7, 40, 127, 128, 160):
            x = torch.randn(rows, width)
            torch.testing.assert_close(fast(x), model(x))


def test_the_number_of_threads_changes_no_bit() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(150, 1000), torch.randn(300, 1000)
    for rows in (2, 40, 150):
        found = []
        for threads in (1, 3, 4):
            torch.set_num_threads(threads)
            found.append(product(x[:rows], w.t()))
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_strict_numerics() -> None:
    """Every rounding as eager's: ATen's products."""
    torch.manual_seed(0)
    model, x = Mlp(), torch.randn(160, 256, requires_grad=True)
    text = flashover.explain(model, options={"strict_numerics": True})(x).text()
    assert "flashover.product" not in text


def test_large_gradient() -> None:
    """Overflow, as a GradScaler provokes it, comes through as infinity and NaN."""
    torch.manual_seed(0)
    model, x = Mlp(), torch.randn(160, 256)
    fast = flashover.compile(model)
    for scale in (1e38, 1e-20, 1e-36):
        found = []
        for call in (fast, model):
            model.zero_grad()
            (call(x) * scale).sum().backward()
            found.append([p.grad.clone() for p in model.parameters()])
        for got, want in zip(*found, strict=True):
            same = got.isfinite() == want.isfinite()
            if scale < 1 or AMX:
                assert bool(same.all())
            else:  # sums close to the largest number: the order decides whether they go beyond it
                assert float(same.double().mean()) > 0.9 and bool(got.isfinite().all()) == bool(want.isfinite().all())
                continue
            tolerance = 1e-5 * float(want[want.isfinite()].abs().max()) if bool(want.isfinite().any()) else 0
            torch.testing.assert_close(got, want, rtol=1e-3, atol=tolerance + 1e-44, equal_nan=True)


@needs_amx
def test_small_weights() -> None:
    """Products with softmax's weights leave denormal numbers out; the team computes with them before and after."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(6, 49, 32, requires_grad=True) for _ in range(3))
    mask = torch.where(torch.rand(49, 49) < 0.5, -95.0, 0.0)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ((q @ k.mT + mask).softmax(-1) @ v).square().sum()

    assert "flashover.bmm_flushed" in flashover.explain(attend)(q, k, v).text()
    fast, found = flashover.compile(attend), []
    for call in (fast, attend):
        for t in (q, k, v):
            t.grad = None
        call(q, k, v).backward()
        found.append([t.grad.clone() for t in (q, k, v)])
        tiny = torch.full((1 << 18,), 1e-40)
        assert bool((tiny * 2 != 0).all())  # by all threads
    for got, want in zip(*found, strict=True):
        assert float((got - want).norm()) <= 1e-5 * float(want.norm())
