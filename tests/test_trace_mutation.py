"""In-place programs: the replayed trace equals eager in outputs and written inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from trace_tools import check

from flashover import _C

PROGRAMS: dict[str, Callable[..., Any]] = {}


def program(fn: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS[fn.__name__] = fn
    return fn


@program
def slice_assignment(x, y):
    x[1:3] = y[0:2] * 2
    return x + 1


@program
def number_assignment(x, y):
    x[0, 1] = 3
    x[:, 2] += 1
    return x * y


@program
def relu_on_view(x, y):
    z = x + 0
    z[1].relu_()
    return z


@program
def add_through_view(x, y):
    z = x.clone()
    z.view(-1)[2:6].add_(1)
    return z, z.t()


@program
def metadata_in_place(x, y):
    z = x * 2
    z.t_()
    z.unsqueeze_(0)
    w = z + 1
    z.squeeze_(0)
    z.transpose_(0, 1)
    return z, w


@program
def resize_shrinks(x, y):
    z = x * 3
    z.resize_(2, 3)
    return z + 1


@program
def copy_in(x, y):
    z = torch.empty_like(x)
    z.copy_(y)
    return z


@program
def detach_then_add(x, y):
    z = x * 1
    z.detach().add_(1)
    return z


@program
def data_mul(x, y):
    z = x * 1
    z.data.mul_(2)
    return z


@program
def chunks(x, y):
    a, b = (x + 1).chunk(2)
    a.mul_(2)
    return a, b


@program
def diagonal_fill(x, y):
    z = x.clone()
    z.diagonal().fill_(7)
    return z


@program
def masked_index_put(x, y):
    z = x.clone()
    z[z > 0] = 0.5
    return z


@program
def index_put(x, y):
    z = x.clone()
    z[torch.tensor([0, 2]), torch.tensor([1, 1])] = y[0, :2]
    return z


@program
def out_argument(x, y):
    out = torch.empty(0)
    torch.add(x, y, out=out)
    out2 = torch.empty_like(x)
    torch.mul(x, y, out=out2)
    return out, out2


@program
def strided_window(x, y):
    z = x.clone()
    z.as_strided((2, 2), (1, 4), 1).zero_()
    return z


@program
def view_as_int(x, y):
    z = x.clone()
    z.view(torch.int32).bitwise_and_(0x7FFFFFFF)
    return z


@program
def conj_views(x, y):
    c = torch.complex(x, y)
    d = c.conj()
    d.mul_(2)
    return c, torch.view_as_real(d.resolve_conj())


@program
def set_storage(x, y):
    z = torch.empty(0)
    z.set_((x * 2).untyped_storage(), 1, (3,), (2,))
    return z


@program
def set_tensor(x, y):
    z = torch.empty(0)
    w = x * 2
    z.set_(w)
    z.add_(1)
    return z, w


@program
def input_written(x, y):
    x.add_(y)
    y.mul_(x)
    return x.sum()


@program
def input_view_written(x, y):
    x.view(-1)[::2].zero_()
    return y + x


@program
def constants(x, y):
    c = torch.tensor([1.0, 2.0, 3.0, 4.0])
    c += x[0]
    d = torch.zeros(4)
    d += 1
    return c, d, torch.tensor([5, 6])


@program
def data_set(x, y):
    z = x * 2
    z.data = y * 3
    return z + 1


@program
def foreach(x, y):
    a, b = x * 1, y * 1
    torch._foreach_add_([a, b], 2.0)
    return a, b, torch._foreach_mul([a, b], 3.0)


@program
def number_mix(x, y):
    return x + 1, x.int() + 1.5, (x > 0) * 3, 2**y, torch.where(x > 0, x, 0.0)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "grad"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_replay_equals_eager(name: str, mode: str) -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    with {"no_grad": torch.no_grad(), "inference_mode": torch.inference_mode(), "grad": torch.enable_grad()}[mode]:
        traced = check(PROGRAMS[name], (x, y))
    assert not traced.python_meta_ops or name in {
        "index_put",
        "masked_index_put",
        "foreach",
        "conj_views",
        "view_as_int",
    }, traced.python_meta_ops


def test_shared_storage() -> None:
    x = torch.randn(3, 3)

    def f(a, b):
        a.mul_(2)
        return b + 1

    with torch.no_grad():
        traced = _C.trace_function(lambda: [f(x, y)], [("x", "user", x), ("y", "user", y := x.t())])
    x2 = x.clone()
    assert torch.equal(traced.run([x2, x2.t()])[0], x2.t() + 1) and torch.equal(x2, x * 2)


def test_input_metadata_changes_decline() -> None:
    for change in (
        lambda x: x.t_(),
        lambda x: x.resize_(1),
        lambda x: x.set_(x * 2),
        lambda x: setattr(x, "data", x * 2),
        lambda x: x.requires_grad_(),
    ):
        x = torch.randn(3, 4)
        version, strides = x._version, x.stride()
        with pytest.raises(_C.Declined):
            _C.trace_function(lambda: [change(x), x + 1][1:], [("x", "user", x)])  # noqa: B023
        assert x._version == version and x.stride() == strides and not x.requires_grad
        assert (x + 1).sum().item() is not None
