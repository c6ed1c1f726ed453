"""The option batch_invariant: a row has the same bits in a batch of any size, and wherever it stands in it; and what
explain() says of numerics."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import flashover

Program = Callable[[torch.Tensor], torch.Tensor]
BATCHES = (1, 3, 16, 64)
D = 64


def row_programs(dtype: torch.dtype) -> dict[str, tuple[Program, tuple[int, ...]]]:
    """Name -> program, sizes of a row."""
    torch.manual_seed(0)
    linear, norm, lstm = torch.nn.Linear(D, 96), torch.nn.LayerNorm(D), torch.nn.LSTM(D, 32, batch_first=True)
    encoder = torch.nn.TransformerEncoderLayer(D, 4, 128, batch_first=True).eval()
    image = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).eval()
    more = torch.nn.Sequential(
        torch.nn.GroupNorm(2, 8),
        torch.nn.Conv2d(8, 8, 3, groups=8),
        torch.nn.SiLU(),
        torch.nn.ConvTranspose2d(8, 4, 2, 2),
    )
    signal = torch.nn.Conv1d(16, 8, 3)
    for module in (linear, norm, lstm, encoder, image, more, signal):
        module.to(dtype)
    free = torch.randn(D, 77).to(dtype)
    return {
        "linear": (linear, (D,)),
        "linear of tokens": (lambda x: F.gelu(linear(x)), (16, D)),
        "product": (lambda x: x @ free, (D,)),
        "product with a vector": (lambda x: x @ free[:, 0], (D,)),
        "products of a batch": (lambda x: x @ x.transpose(1, 2), (16, D)),
        "written attention": (lambda x: torch.softmax(x @ x.transpose(1, 2) / 8, -1) @ x, (33, D)),
        "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), (4, 48, 16)),
        "causal attention": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), (4, 48, 16)),
        "encoder": (encoder, (24, D)),
        "lstm": (lambda x: lstm(x)[0], (5, D)),
        "layer norm": (norm, (16, D)),
        "long sum": (lambda x: (x * 0.01).sum(-1), (200000,)),
        "sum of columns": (lambda x: x.sum(1), (300, D)),
        "variance of images": (lambda x: x.var((2, 3)), (4, 40, 40)),
        "logsumexp": (lambda x: x.logsumexp(1), (3000,)),
        "convolutions": (lambda x: more(image(x)), (3, 20, 20)),
        "pool": (lambda x: F.adaptive_avg_pool2d(F.max_pool2d(image(x), 2), 1).flatten(1), (3, 20, 20)),
        "channels last": (lambda x: image(x.to(memory_format=torch.channels_last)), (3, 20, 20)),
        "convolution of a signal": (signal, (16, 50)),
        "cumsum": (lambda x: x.cumsum(-1), (500,)),
        "sum over the first dim in memory": (lambda x: x.transpose(0, 1).contiguous().mean(0), (500,)),
        "softmax with the batch last": (lambda x: torch.softmax(x.transpose(0, 1).contiguous(), 0).mT, (500,)),
        "norm of what lies otherwise": (
            lambda x: norm(torch.cat([free[:1, :D].expand(len(x), 1, D), x.flatten(2).mT], 1)),
            (D, 7, 7),
        ),
    }


KINDS = [(torch.float32, None), (torch.float32, False), (torch.bfloat16, None), (torch.float64, False)]


@pytest.mark.parametrize(("dtype", "dynamic"), KINDS, ids=lambda k: str(k).replace("torch.", ""))
@pytest.mark.parametrize("name", row_programs(torch.float32))
def test_rows(name: str, dtype: torch.dtype, dynamic: bool | None) -> None:
    program, sizes = row_programs(dtype)[name]
    options = {"batch_invariant": True, "recompile_limit": 100}
    fast = flashover.compile(lambda x: program(x), fullgraph=True, dynamic=dynamic, options=options)
    most = torch.randn(BATCHES[-1], *sizes, generator=torch.Generator().manual_seed(1)).to(dtype)
    with torch.no_grad():
        want = fast(most).clone()
        near = {torch.float32: 1e-4, torch.float64: 1e-9}.get(dtype, 0.05)
        torch.testing.assert_close(want.float(), program(most).float(), rtol=near, atol=near)
        for count in BATCHES:
            first, last = fast(most[:count]), fast(most[-count:])
            assert torch.equal(first, want[:count]), (count, (first - want[:count]).abs().max())
            assert torch.equal(last, want[-count:]), (count, "other places", (last - want[-count:]).abs().max())


def test_gradients_of_rows() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(144, 5))
    most = torch.randn(16, 3, 8, 8)
    fast = flashover.compile(net, options={"batch_invariant": True})

    def gradient(count: int) -> torch.Tensor:
        x = most[:count].clone().requires_grad_()
        fast(x).square().sum().backward()
        assert x.grad is not None
        return x.grad

    want = gradient(16)
    for count in (1, 2, 5, 16):
        assert torch.equal(gradient(count), want[:count])
    eager = most.clone().requires_grad_()
    net(eager).square().sum().backward()
    torch.testing.assert_close(want, eager.grad)


def test_promises_exclude_each_other() -> None:
    with pytest.raises(flashover.exc.InvalidOptions, match="strict_numerics"):
        flashover.compile(torch.sin, options={"batch_invariant": True, "strict_numerics": True})
    with pytest.raises(flashover.exc.InvalidOptions, match="background"):
        flashover.compile(torch.sin, options={"batch_invariant": True, "compile": "background"})


def test_what_cannot_be_given_is_said() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x, x.flip(0)) + x.sum()

    found = flashover.explain(f, options={"batch_invariant": True})(torch.randn(8, 8)).numerics
    assert found is not None and found.promise == "a row's bits in any batch" and not found.holds and found.kept > 0
    assert [g.operator for g in found.given_up] == ["_cdist_forward"]
    assert "test_batch_invariant.py" in found.given_up[0].where and "how many rows" in found.given_up[0].reason
    assert found.to_dict()["given_up"][0]["count"] == 1


def test_what_runs_eager_is_said() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        flashover.graph_break()
        return y + 1

    e = flashover.explain(f, options={"batch_invariant": True})(torch.randn(8))
    assert e.numerics is not None and e.numerics.promise == "a row's bits in any batch"


def test_certificate_of_eagers_bits() -> None:
    net = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Linear(64, 64)).eval()
    x = torch.randn(64, 64)
    with torch.no_grad():
        kept = flashover.explain(net, options={"strict_numerics": True})(x)
        lost = flashover.explain(net)(x)
    assert kept.numerics is not None and kept.numerics.holds and kept.numerics.kept == 3
    assert "promised: eager's bits; 3 operators keep" in str(kept)
    assert lost.numerics is not None and lost.numerics.promise == "none" and not lost.numerics.holds
    reasons = {g.operator: g.reason for g in lost.numerics.given_up}
    assert {"gelu", "native_layer_norm"} <= set(reasons) and "other order" in reasons["native_layer_norm"]
    assert "promised" not in str(lost) and lost.to_dict()["numerics"]["holds"] is False
