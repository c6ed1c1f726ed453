"""mode="max-autotune", explain(measure=True) and torch.profiler on a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

import flashover

pytestmark = pytest.mark.gpu


class MLP(torch.nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


@pytest.mark.parametrize(("rows", "width", "hidden"), [(4096, 768, 3072), (333, 200, 1000), (1, 64, 256)])
@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_right(rows: int, width: int, hidden: int, mode: str) -> None:
    torch.manual_seed(0)
    model, x = MLP(width, hidden).cuda().eval(), torch.randn(rows, width, device="cuda")
    with torch.no_grad():
        exact = model(x)
        with torch.autocast("cuda", torch.bfloat16):
            eager = model(x)
            fast = flashover.compile(model, mode=mode)
            for _ in range(3):
                got = fast(x)
    own, off = (float((t.float() - exact).norm() / exact.norm()) for t in (eager, got))
    assert off <= 2 * own + 1e-3


def test_the_choice_is_remembered_and_the_rest_left_alone(tmp_path) -> None:
    model, x = MLP(768, 3072).cuda().eval(), torch.randn(4096, 768, device="cuda")
    state = torch.cuda.get_rng_state()
    options = {"max_autotune": True, "cache_dir": str(tmp_path)}
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        first = flashover.explain(model, options=options)(x)
        notes = first.graphs[0]["texts"]["products"]
        print(notes)
        assert notes.count("library ") >= 1 and "inf" not in notes and "not measured" not in notes
        assert torch.equal(torch.cuda.get_rng_state(), state)
        again = flashover.explain(model, options=options)(x)
        assert "products" not in again.graphs[0]["texts"]  # nothing to measure
        assert [s["name"] for s in first.kernels] == [s["name"] for s in again.kernels]
        fused = [s for s in first.kernels if s["name"].startswith(("mm_", "addmm_", "of_"))]
        assert len(fused) == notes.count(": one kernel\n")


def test_every_tile_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unmeasured: each way of cutting a product, on sizes that fit none of them."""
    torch.manual_seed(0)
    args = [t.cuda().bfloat16() for t in (torch.randn(300, 136), torch.randn(520, 136), torch.randn(520))]
    exact = F.gelu(F.linear(*(t.double() for t in args)))
    own = float((F.gelu(F.linear(*args)).double() - exact).norm())
    names = set()
    for tile in range(12):
        monkeypatch.setenv("FLASHOVER_PRODUCT_TILE", str(tile))
        options = {"max_autotune": True, "cache": False}
        e = flashover.explain(lambda x, w, b: F.gelu(F.linear(x, w, b)), options=options)
        names |= {s["name"] for s in e(*args).kernels if s["name"].startswith("addmm_")}
        got = flashover.compile(lambda x, w, b: F.gelu(F.linear(x, w, b)), options=options)(*args)
        assert float((got.double() - exact).norm()) <= 1.5 * own, tile
    assert len(names) >= 8


class Gated(torch.nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.both, self.down = torch.nn.Linear(width, 2 * hidden), torch.nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.both(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


def small(*sizes: int) -> torch.Tensor:
    return torch.randint(-9, 9, sizes).to(torch.int8)


AROUND = {
    "gate": (Gated(256, 512), [torch.randn(300, 256)]),
    "small weights": (lambda x, w, s: x @ (w * s).bfloat16(), [torch.randn(33, 256), small(256, 512), torch.rand(512)]),
    "scores": (
        lambda q, k: torch.bmm(q * 0.125, k.transpose(1, 2)) + 1,
        [torch.randn(6, 100, 72), torch.randn(6, 130, 72)],
    ),
    "turned": (lambda x, w: x.exp().t() @ w, [torch.randn(72, 130), torch.randn(72, 96)]),
}


@pytest.mark.parametrize("tile", [0, 3, 6, 11])
@pytest.mark.parametrize("name", AROUND)
def test_kernels_before_products(name: str, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unmeasured: operands computed where they are loaded, products of batches."""
    fn, args = AROUND[name]
    torch.manual_seed(0)
    if isinstance(fn, torch.nn.Module):
        fn = fn.cuda().bfloat16()
    args = [t.cuda().bfloat16() if t.is_floating_point() else t.cuda() for t in args]
    with torch.no_grad():
        eager = fn(*args)
        monkeypatch.setenv("FLASHOVER_PRODUCT_TILE", str(tile))
        options = {"max_autotune": True, "cache": False}
        assert any(s["name"].startswith("of_") for s in flashover.explain(fn, options=options)(*args).kernels)
        got = flashover.compile(fn, options=options)(*args)
    assert (got.shape, got.dtype, got.stride()) == (eager.shape, eager.dtype, eager.stride())
    assert float((got.float() - eager.float()).norm() / eager.float().norm()) < 1e-2


def test_kernels_before_products_are_measured(tmp_path) -> None:
    model, x = Gated(768, 2048).cuda().eval(), torch.randn(2048, 768, device="cuda")
    options = {"max_autotune": True, "cache_dir": str(tmp_path)}
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        eager = model(x)
        e = flashover.explain(model, options=options)(x)
        print(e.graphs[0]["texts"]["products"])
        assert "inf" not in e.graphs[0]["texts"]["products"]
        got = flashover.compile(model, options=options)(x)
    assert float((got - eager).float().norm() / eager.float().norm()) < 1e-2


@pytest.mark.unsanitized
def test_little_memory_while_measuring_is_survived() -> None:
    model, x = MLP(1024, 4096).cuda().eval(), torch.randn(8192, 1024, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        expected = model(x)
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (320 << 20)) / total)
        try:
            got = flashover.compile(model, options={"max_autotune": True, "cache": False})(x)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
    assert float((got - expected).norm() / expected.norm()) < 2e-2


@pytest.mark.unsanitized
def test_measured() -> None:
    model, x = MLP(768, 3072).cuda().eval(), torch.randn(8192, 768, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        e = flashover.explain(model, measure=True)(x)
    assert e.bandwidth["cuda:0"] > 1e11
    for s in e.kernels + e.externs:
        assert 1e-7 < s["seconds"] < 1e-2 and 0 < s["share"] < 3, s["name"]
    shown = ("GB/s", " kernel ", " extern ")
    print("\n".join(line for line in e.text().splitlines() if any(word in line for word in shown)))
    assert "cuda:0" in e.to_html()


@pytest.mark.unsanitized
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_kernels_have_names_in_a_profile(mode: str | None) -> None:
    model, x = MLP(64, 256).cuda().eval(), torch.randn(32, 64, device="cuda")
    fast = flashover.compile(model, mode=mode)
    with torch.no_grad():
        for _ in range(3):
            fast(x)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
            fast(x)
            torch.cuda.synchronize()
        names = {s["name"] for s in flashover.explain(model)(x).kernels}
    seen = {e.name for e in p.events() if e.device_type == torch.autograd.DeviceType.CUDA}
    assert names and names <= seen
    ranges = {e.name for e in p.events()}
    assert "flashover: MLP" in ranges
    if mode is None:
        assert "self" in ranges
