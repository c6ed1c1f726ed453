"""Programs that write in place: name -> function of two tensors of 3 x 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

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
