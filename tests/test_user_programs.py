"""What users of torch.compile write: control flow operators, checks that raise, objects that change between calls."""

from __future__ import annotations

import array
import collections
import functools
import operator
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashover

Tensor = torch.Tensor


def x() -> Tensor:
    return torch.arange(12.0).reshape(3, 4) * 0.1


def whole(f: Callable[..., Any], **options: Any) -> Any:
    return flashover.compile(f, fullgraph=True, **options)


# --- torch's control flow operators, which run themselves through torch.compile in eager


def test_cond_selects() -> None:
    def f(p: Tensor, a: Tensor) -> Any:
        return torch.cond(p, lambda v: {"o": (v.sin(), v + 1)}, lambda v: {"o": (v.cos(), v - 1)}, (a,))

    c = whole(f)
    for p in (True, False):
        got = c(torch.tensor(p), x())["o"]
        want = (x().sin(), x() + 1) if p else (x().cos(), x() - 1)
        torch.testing.assert_close(got, want)


def test_cond_takes_one_gradient() -> None:
    c = flashover.compile(lambda p, a: torch.cond(p, lambda v: v.sqrt(), lambda v: v * 2, (a,)).sum())
    a = torch.zeros(3, requires_grad=True)
    c(torch.tensor(False), a).backward()  # the gradient of sqrt at zero is infinite
    assert a.grad is not None and torch.equal(a.grad, torch.full((3,), 2.0))


def test_cond_draws_in_one_branch_only() -> None:
    c = flashover.compile(
        lambda p, a: torch.cond(p, lambda v: v + torch.rand(3), lambda v: v + torch.rand(3) * 2, (a,))
    )
    torch.manual_seed(0)
    got = c(torch.tensor(True), torch.zeros(3)), torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(got[0], torch.rand(3)) and torch.equal(got[1], torch.rand(1))


def test_while_loop_and_scan() -> None:
    from torch._higher_order_ops import map as each
    from torch._higher_order_ops.scan import scan
    from torch._higher_order_ops.while_loop import while_loop

    def f(a: Tensor) -> Any:
        return (
            while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), (torch.tensor(0), a)),
            scan(lambda c, v: (c + v, c * v), torch.zeros(4), a),
            scan(lambda c, v: (c + v, c * v), torch.zeros(3), a, dim=1, reverse=True),
            each(lambda row, k: row * k, a, torch.ones(4) * 2),
        )

    loop, (total, rows), (_, columns), doubled = whole(f)(x())
    assert int(loop[0]) == 3
    torch.testing.assert_close(loop[1], x() * 8)
    torch.testing.assert_close(total, x().sum(0))
    torch.testing.assert_close(rows, (x().cumsum(0) - x()) * x())
    torch.testing.assert_close(columns, ((x().flip(1).cumsum(1) - x().flip(1)) * x().flip(1)).t().flip(0))
    torch.testing.assert_close(doubled, x() * 2)


def test_while_loop_over_data() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    c = flashover.compile(lambda a: while_loop(lambda v: v.sum() < 100, lambda v: (v * 2 + 1,), (a,))[0])
    for k in (1, 40):
        want = x() * k
        while want.sum() < 100:
            want = want * 2 + 1
        torch.testing.assert_close(c(x() * k), want)


def test_flex_attention() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q = torch.arange(512.0).reshape(1, 2, 32, 8).sin()
    bias = torch.arange(32.0) * 0.01
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, 2, 32, 32, device="cpu")
    c = whole(lambda q: flex_attention(q, q + 1, q * 2, score_mod=lambda s, b, h, i, j: s + bias[j], block_mask=mask))
    scores = q @ (q + 1).transpose(-1, -2) / 8**0.5 + bias
    scores = scores.masked_fill(~torch.ones(32, 32, dtype=torch.bool).tril(), -torch.inf)
    with torch.no_grad():
        torch.testing.assert_close(c(q), scores.softmax(-1) @ (q * 2))


@pytest.mark.parametrize("norm", [False, True])
def test_padded_encoder_is_zero_where_eager_is(norm: bool) -> None:
    torch.manual_seed(0)
    m = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, norm=nn.LayerNorm(16) if norm else None
    ).eval()
    s, pad = torch.rand(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    c = whole(m)
    with torch.no_grad():
        for p in (pad, pad.flip(1)):  # one that eager makes a nested tensor of, one that it does not
            got, want = c(s, src_key_padding_mask=p), m(s, src_key_padding_mask=p)
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_torch_compile_inside() -> None:
    inner = torch.compile(lambda v: v + 1, backend="eager")
    before = flashover.compile(lambda v: inner(v) * 2)
    within = flashover.compile(lambda v: torch.compile(lambda w: w + 1, backend="eager")(v) * 2)
    for _ in range(2):
        assert torch.equal(before(torch.ones(3)), torch.full((3,), 4.0))
        assert torch.equal(within(torch.ones(3)), torch.full((3,), 4.0))


def test_forward_mode() -> None:
    c = whole(lambda a: (torch.func.jvp(torch.sin, (a,), (a,)), torch.func.jacfwd(torch.sin)(a)))
    (value, tangent), jacobian = c(x()[0])
    torch.testing.assert_close((value, tangent), (x()[0].sin(), x()[0].cos() * x()[0]))
    torch.testing.assert_close(jacobian, torch.diag(x()[0].cos()))
    hessian = flashover.compile(lambda a: torch.func.hessian(lambda b: (b**3).sum())(a))
    for _ in range(2):
        torch.testing.assert_close(hessian(x()[0]), torch.diag(6 * x()[0]))


def test_sdpa_kernel() -> None:
    def f(q: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return nn.functional.scaled_dot_product_attention(q, q, q)

    q = x().reshape(1, 1, 3, 4)
    flags = torch.backends.cuda.flash_sdp_enabled()
    torch.testing.assert_close(whole(f)(q), f(q))
    assert torch.backends.cuda.flash_sdp_enabled() == flags


# --- a tensor decides between going on and raising


def check(a: Tensor, log: list[int]) -> Tensor:
    log.append(1)
    assert (a < 1).all(), "too big"
    if not torch.isfinite(a).all():
        raise ValueError(f"bad {a.shape}")
    log.append(2)
    return a + 1


def test_checks_that_raise() -> None:
    c = whole(check)
    for value, error in ((0.5, None), (2.0, AssertionError), (-torch.inf, ValueError), (0.25, None)):
        got: list[int] = []
        if error is None:
            assert torch.equal(c(torch.full((3,), value), got), torch.full((3,), value + 1)) and got == [1, 2]
        else:
            with pytest.raises(error, match="too big" if error is AssertionError else "bad"):
                c(torch.full((3,), value), got)
            assert got == [1]


def test_checks_after_a_write() -> None:
    def f(a: Tensor) -> Tensor:
        a.add_(1)
        if a.sum() > 100:
            raise ValueError("big")
        return a * 2

    c, a, b = flashover.compile(f), x(), x()
    for _ in range(12):
        results = []
        for g, v in ((c, a), (f, b)):
            try:
                results.append(g(v).tolist())
            except ValueError as e:
                results.append(str(e))
        assert results[0] == results[1] and torch.equal(a, b)


def test_a_check_that_is_caught() -> None:
    def inner(a: Tensor) -> Tensor:
        if a.sum() > 5:
            raise ValueError
        return a + 1

    def f(a: Tensor) -> Tensor:
        try:
            return inner(a)
        except ValueError:
            return a - 1

    c = flashover.compile(f)
    for k in (0.0, 1.0, 0.1):
        assert torch.equal(c(x() * k), f(x() * k))


# --- what is read of objects that are no plain dicts and lists


class Words(dict):
    pass


class Row(list):
    pass


class Name(str):
    pass


class Count(int):
    pass


class Held:
    def __init__(self) -> None:
        self._v = 1

    v = property(operator.attrgetter("_v"))


def state() -> types.SimpleNamespace:
    s = types.SimpleNamespace(
        w=np.array([1.0, 2, 3, 4], np.float32), words=Words(a=1), count=collections.Counter("aab"), row=Row([1, 2]),
        name=Name("ab"), number=Count(3), held=Held(), raw=bytearray(b"abc"), array=array.array("f", [1, 2]),
        base={"a": 1},
    )  # fmt: skip
    s.proxy, s.tail = types.MappingProxyType(s.base), s.w[1:]
    return s


READS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda s: float(s.w[1]), "s.w[1] = 9"),
    (lambda s: torch.tensor(s.w * 2), "s.w[1] = 9"),
    (lambda s: torch.as_tensor(s.w), "s.w[1] = 9"),
    (lambda s: sum(list(s.w)), "s.w[1] = 9"),
    (lambda s: float(s.tail[0]), "s.w[1] = 9"),
    (lambda s: 1 if s.w[1] > 5 else 2, "s.w[1] = 9"),
    (lambda s: float(s.w.T[1]), "s.w = np.array([5.0, 6], np.float32)"),
    (lambda s: s.w.__iadd__(1) is s.w and float(s.w[0]), "s.w[0] = 50"),
    (lambda s: s.words["a"], "s.words['a'] = 5"),
    (lambda s: s.count["a"] + s.count["zz"], "s.count.update('aaz')"),
    (lambda s: s.row[0], "s.row[0] = 5"),
    (lambda s: len(s.name.upper()), "s.name = Name('abcd')"),
    (lambda s: s.number, "s.number = Count(7)"),
    (lambda s: s.held.v, "s.held._v = 5"),
    (lambda s: operator.attrgetter("held._v")(s), "s.held._v = 5"),
    (lambda s: operator.itemgetter("a")(s.words), "s.words['a'] = 5"),
    (lambda s: len(s.raw) + bool(s.raw), "s.raw.append(1)"),
    (lambda s: s.array[0], "s.array[0] = 9"),
    (lambda s: s.proxy["a"] + len(s.proxy), "s.base['a'] = 4"),
    (lambda s: s.proxy.get("a") + ("b" in s.proxy), "s.base['b'] = s.base['a'] = 4"),
]


@pytest.mark.parametrize("number", range(len(READS)))
@pytest.mark.filterwarnings("ignore")
def test_read_anew(number: int) -> None:
    read, change = READS[number]

    def results(compile_it: bool) -> list[Tensor]:
        s = state()
        f = flashover.compile(lambda a: a * read(s), backend="eager") if compile_it else lambda a: a * read(s)
        out = [f(torch.ones(4)), f(torch.ones(4))]
        exec(change, globals(), {"s": s})
        return [*out, f(torch.ones(4)), f(torch.ones(4))]

    assert [t.tolist() for t in results(True)] == [t.tolist() for t in results(False)]


# --- tensors: what is asked of them, and what is set on them


def test_gradient_set_on_a_new_tensor() -> None:
    def f(a: Tensor) -> Tensor:
        y = a + 1
        y.grad = a * 2
        y.note = "n"
        return y

    got = whole(f)(x())
    assert got.grad is not None and torch.equal(got.grad, x() * 2) and got.note == "n"


def test_legacy_tensor_types() -> None:
    def f(a: Tensor, n: Tensor) -> list[bool]:
        kinds = (torch.FloatTensor, torch.LongTensor, (int, torch.FloatTensor), torch.cuda.FloatTensor)
        return [isinstance(t, k) for t in (a, a + 1, n, n.double()) for k in kinds]

    assert whole(f)(x(), torch.ones(2, dtype=torch.long)) == f(x(), torch.ones(2, dtype=torch.long))


def test_thread_local_is_written() -> None:
    local = threading.local()

    def f(a: Tensor) -> Tensor:
        local.kept = a + 1
        return a * 2

    c = flashover.compile(f)
    for k in (1, 2):
        assert torch.equal(c(x() * k), x() * k * 2) and torch.equal(local.kept, x() * k + 1)


def test_user_code_is_told_that_it_is_compiled() -> None:
    def f(a: Tensor) -> Any:
        return a + 1, torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling(), torch.compiler.is_exporting()

    assert whole(f)(x())[1:] == (True, True, False)


def _rows(b: Tensor) -> tuple[Tensor, ...]:
    return b[0], b, b[1]


def _columns(b: Tensor) -> tuple[Tensor, ...]:
    return b[:, :2], b[:, 2:], torch.ones(3, 2)


def _the_same(b: Tensor) -> tuple[Tensor, ...]:
    return b, b.view(12), b.detach()[1:]


@pytest.mark.parametrize("inputs", [_rows, _columns, _the_same])
def test_inputs_that_share_memory_are_written(inputs: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    def f(a: Tensor, b: Tensor, c: Tensor) -> Any:
        b.mul_(2)
        a.add_(1)
        seen = a * 3, b.sum(), c + 1
        c.neg_()
        return *seen, a.sum(), b[1:]

    base, plain = x(), x()
    got, want = whole(f)(*inputs(base)), f(*inputs(plain))
    torch.testing.assert_close((got, base), (want, plain))


def test_whole_capture_of_what_no_kernel_can_give() -> None:
    def f(a: Tensor, w: Tensor) -> Any:
        return a.view(torch.int32), a * w

    c = whole(f)
    with pytest.warns(RuntimeWarning, match="captured whole"):
        got = c(x(), x())
    assert torch.equal(got[0], x().view(torch.int32))
    assert torch.equal(got[1], x() * x())
    with pytest.raises(flashover.exc.BackendCompilerFailed, match="reinterpreted view"):
        c(x(), x().requires_grad_())
    assert flashover.compile(f)(x(), x().requires_grad_())[1].requires_grad


def test_numbers_of_numpy_as_arguments() -> None:
    def f(a: Tensor, scale: Any, n: Any, on: Any) -> Any:
        return a * scale + n + (scale % n), a[n], np.sqrt(scale * scale), scale + n, a + float(scale) * bool(on)

    c, a = whole(f), x()
    for scale, n, on in (
        (np.float64(2.5), np.int64(2), np.bool_(True)),
        (np.float64(3.5), np.int64(2), np.bool_(False)),
        (np.float32(3.5), np.uint8(1), np.bool_(True)),
        (np.float64(-0.0), np.int64(2), np.bool_(True)),
        (np.float64(0.0), np.int64(2), np.bool_(True)),
    ):
        got, want = c(a, scale, n, on), f(a, scale, n, on)
        torch.testing.assert_close(got[:2] + got[4:], want[:2] + want[4:])
        assert [repr(v) for v in got[2:4]] == [repr(v) for v in want[2:4]]


# --- autograd inside


def test_a_loss_and_its_gradients() -> None:
    layer = nn.Linear(4, 3)

    def step(a: Tensor) -> Any:
        loss = (layer(a) ** 2).sum()
        return loss, *torch.autograd.grad(loss, list(layer.parameters()))

    c, before = flashover.compile(step), flashover.compile_stats()
    got, want = c(x()), step(x())
    torch.testing.assert_close(got, want)
    assert got[0].requires_grad and flashover.compile_stats()["frames"] > before["frames"]
    with pytest.raises(RuntimeError, match="second time"):
        got[0].backward()


@pytest.mark.parametrize("kept", ["selected", "no random state"])
def test_checkpoints_with_more_to_say(kept: str) -> None:
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.PREFER_RECOMPUTE

    how: dict[str, Any] = {"preserve_rng_state": False}
    if kept == "selected":
        how = {"context_fn": functools.partial(create_selective_checkpoint_contexts, policy)}

    def f(a: Tensor) -> Tensor:
        return checkpoint(lambda v: v.sin() * v, a, use_reentrant=False, **how).sum()

    a, b = x().requires_grad_(), x().requires_grad_()
    whole(f)(a).backward()
    f(b).backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_nested_compile_region() -> None:
    @torch.compiler.nested_compile_region
    def region(a: Tensor, k: int = 2) -> Tensor:
        return a.sin() * k

    torch.testing.assert_close(whole(lambda a: region(a) + region(a, k=3))(x()), x().sin() * 5)
