"""Products and attention of one row on the GPU (a language model's step for one token) against fp64, caches written in
place, kernels that start before those in front have ended."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import flashover

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("inner", "outer"), [(64, 10), (1000, 333), (2048, 2048), (14336, 515)])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(dtype: torch.dtype, inner: int, outer: int, bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(inner, outer, bias=bias, device="cuda", dtype=dtype)
    x = torch.randn(1, inner, device="cuda", dtype=dtype)
    with torch.no_grad():
        fast = flashover.compile(lambda x: (F.relu(layer(x)), layer(x) * 2), fullgraph=True)
        exact = nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
        for _ in range(3):
            got = fast(x)
        for g, w, e in zip(got, (F.relu(layer(x)), layer(x) * 2), (F.relu(exact), exact * 2), strict=True):
            assert g.shape == w.shape and g.stride() == w.stride() and g.dtype == w.dtype
            ours, eagers = (g.double() - e).abs().max().item(), (w.double() - e).abs().max().item()
            assert ours <= 1.5 * eagers + 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("groups", [8, 2, 1])
@pytest.mark.parametrize("mask", ["none", "bool", "float", "hidden", "heads"])
def test_attention_of_one_query(dtype: torch.dtype, groups: int, mask: str) -> None:
    torch.manual_seed(0)
    keys = 77
    q = torch.randn(2, 8, 1, 64, device="cuda", dtype=dtype)
    k, v = (torch.randn(2, groups, keys, 64, device="cuda", dtype=dtype) for _ in range(2))
    m = {
        "none": None,
        "bool": torch.rand(2, 1, 1, keys, device="cuda") > 0.3,
        "float": torch.randn(1, 1, 1, keys, device="cuda", dtype=dtype),
        "hidden": torch.zeros(2, 1, 1, keys, device="cuda", dtype=torch.bool),
        "heads": torch.randn(2, 8, 1, keys, device="cuda", dtype=dtype),
    }[mask]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor | None) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=m, enable_gqa=True)

    wide = m.double() if m is not None and m.is_floating_point() else m
    exact = attend(*(t.double() for t in (q, k, v)), wide).nan_to_num()
    with torch.no_grad():
        got, want = flashover.compile(attend, fullgraph=True)(q, k, v, m), attend(q, k, v, m).nan_to_num()
    assert got.shape == want.shape and got.stride() == want.stride()
    ours, eagers = ((t.double() - exact).abs().max().item() for t in (got, want))
    assert ours <= 1.5 * eagers + 1e-6


class Step(nn.Module):
    """A layer for one token with caches that are written where the token stands."""

    def __init__(self, width: int, keys: int) -> None:
        super().__init__()
        self.width, self.keys = width, keys
        self.norm = nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = (nn.Linear(width, 4 * width), nn.Linear(width, 4 * width),
                                         nn.Linear(4 * width, width))  # fmt: skip

    def forward(self, x: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        heads = self.width // 64
        q, new_k, new_v = self.qkv(self.norm(x)).view(1, 1, 3, heads, 64).permute(2, 0, 3, 1, 4)
        k.index_copy_(2, at, new_k)
        v[:, :, at] = new_v
        mask = (torch.arange(self.keys, device=x.device) <= at)[None, None, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(1, 1, self.width))
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_layer_of_a_decoder(mode: str) -> None:
    torch.manual_seed(0)
    keys = 48
    layers = nn.ModuleList(Step(256, keys) for _ in range(4)).cuda().bfloat16()

    def step(x: torch.Tensor, caches: list[torch.Tensor], at: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(layers):
            x = layer(x, caches[2 * i], caches[2 * i + 1], at)
        return x

    fast = flashover.compile(step, mode=mode, fullgraph=True)
    mine = [torch.zeros(1, 4, keys, 64, device="cuda", dtype=torch.bfloat16) for _ in range(8)]
    theirs = [c.clone() for c in mine]
    with torch.no_grad():
        for n in range(keys):
            x = torch.randn(1, 1, 256, device="cuda", dtype=torch.bfloat16)
            at = torch.tensor([n], device="cuda")
            got, want = fast(x, mine, at), step(x, theirs, at)
            torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("masked", [False, True])
def test_a_cache_that_grows(masked: bool) -> None:
    torch.manual_seed(0)

    def step(x: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        k, v = torch.cat([k, x[:, :2]], 2), torch.cat([v, x[:, 2:4]], 2)
        mask = (torch.arange(k.shape[2], device=x.device) % 7 != 3)[None, None, None] if masked else None
        rows = [t[:, :, None].expand(1, 2, 4, -1, 64).reshape(1, 8, -1, 64) for t in (k, v)]
        return F.scaled_dot_product_attention(x, *rows, attn_mask=mask), k, v

    fast = flashover.compile(step, fullgraph=True)
    mine = theirs = tuple(torch.randn(1, 2, 5, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    with torch.no_grad():
        for _ in range(40):
            x = torch.randn(1, 8, 1, 64, device="cuda", dtype=torch.bfloat16)
            got, *mine = fast(x, *mine)
            want, *theirs = step(x, *theirs)
            torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_a_layer_of_a_decoder_has_no_library_calls() -> None:
    layer = Step(256, 48).cuda().bfloat16()
    x = torch.randn(1, 1, 256, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.zeros(1, 4, 48, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    with torch.no_grad():
        e = flashover.explain(layer)(x, k, v, torch.tensor([3], device="cuda"))
    assert not [line for line in e.text("plan").splitlines() if line.strip().startswith("call ")]


@pytest.mark.parametrize("rounds", [200])
def test_chains_of_kernels_see_what_those_before_wrote(rounds: int) -> None:
    """Each step reads weights early and what the step before wrote late; sums over many steps show a read too early."""
    torch.manual_seed(0)
    weights = [torch.randn(512, 512, device="cuda") / 512**0.5 for _ in range(12)]

    def chain(x: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = torch.tanh(F.linear(x, w)) + x.sum(-1, keepdim=True) * 1e-3
        return x

    fast = flashover.compile(chain, fullgraph=True)
    with torch.no_grad():
        for _ in range(rounds):
            x = torch.randn(1, 512, device="cuda")
            torch.testing.assert_close(fast(x), chain(x), rtol=1e-3, atol=1e-3)


def test_weights_that_change_between_calls_are_read_anew() -> None:
    layer = nn.Linear(512, 512, device="cuda")
    x = torch.randn(1, 512, device="cuda")
    fast = flashover.compile(lambda x: torch.tanh(layer(x) + 1), fullgraph=True)
    with torch.no_grad():
        for n in range(50):
            layer.weight.normal_().mul_(n / 50)
            torch.testing.assert_close(fast(x), torch.tanh(layer(x) + 1), rtol=1e-3, atol=1e-3)


def test_rows_stored_by_an_index() -> None:
    torch.manual_seed(0)
    x, rows = torch.randn(40, 33, device="cuda"), torch.randn(7, 33, device="cuda")
    at = torch.randperm(40, device="cuda")[:7]

    def store(x: torch.Tensor, rows: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.index_copy(0, at, rows * 2)
        x[at] = rows
        x[at[:3], 5] = 1.0
        return y, x, torch.index_put(y, (at - 40,), rows)

    mine, theirs = x.clone(), x.clone()
    for g, w in zip(flashover.compile(store, fullgraph=True)(mine, rows, at), store(theirs, rows, at), strict=True):
        torch.testing.assert_close(g, w)
    torch.testing.assert_close(mine, theirs)


def test_new_sizes_take_over_the_graphs_of_others() -> None:
    """A plan over symbols meets each size once, as a cache that grows does, and then all of them again."""
    weights = [torch.randn(64, 64, device="cuda") for _ in range(6)]

    def f(x: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = torch.tanh(x * w.sum(0)) + x.mean(0, keepdim=True) + x.sum(1, keepdim=True) * 1e-2
        return x

    fast = flashover.compile(f, fullgraph=True, dynamic=True)
    torch.manual_seed(0)
    inputs = [torch.randn(n, 64, device="cuda") for n in range(2, 60)]
    for order in (inputs, inputs[::-1], inputs, inputs, inputs[::3] * 3):
        for x in order:
            torch.testing.assert_close(fast(x), f(x), rtol=1e-4, atol=1e-4)


def test_threads_that_share_graphs() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def f(x: torch.Tensor) -> torch.Tensor:
        for n in range(5):
            x = torch.tanh(x + n) + x.sum(1, keepdim=True) * 1e-2
        return x

    fast = flashover.compile(f, fullgraph=True, dynamic=True)
    torch.manual_seed(0)
    inputs = [torch.randn(n, 32, device="cuda") for n in range(2, 50)]
    for x in inputs[:3]:
        fast(x)

    def run(part: int) -> float:
        worst = 0.0
        with torch.cuda.stream(torch.cuda.Stream()):
            for x in inputs[part::2] * 3:
                worst = max(worst, (fast(x) - f(x)).abs().max().item())
        return worst

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(run, [0, 1, 0, 1])) < 1e-4
