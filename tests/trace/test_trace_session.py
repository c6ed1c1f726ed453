"""Life of a session: identity, swapping back, declines that cannot be swallowed, threads, dead tensors, leaks."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch

from flashover import _C


def run(fn: Any, **inputs: torch.Tensor) -> Any:
    return _C.trace_function(fn, [(n, "user", t) for n, t in inputs.items()])


def test_identity_and_attributes_survive() -> None:
    p = torch.nn.Parameter(torch.randn(3))
    p.note = "mine"
    p.grad = torch.ones(3)
    grad, ref, seen = p.grad, weakref.ref(p), {}

    def f() -> list[torch.Tensor]:
        seen["type"], seen["leaf"], seen["grad"], seen["note"] = type(p), p.is_leaf, p.grad is grad, p.note
        seen["requires_grad"], seen["version"], seen["device"] = p.requires_grad, p._version, p.device
        return [p * 2]

    run(f, p=p)
    assert seen == {
        "type": torch.nn.Parameter,
        "leaf": True,
        "grad": True,
        "note": "mine",
        "requires_grad": True,
        "version": 0,
        "device": torch.device("cpu"),
    }
    assert ref() is p and p.grad is grad and p.note == "mine" and p.tolist() is not None


def test_reference_counts_balance() -> None:
    import sys

    p, x = torch.nn.Parameter(torch.randn(3)), torch.randn(3)
    before = sys.getrefcount(p), sys.getrefcount(x)
    for _ in range(5):
        run(lambda: [p * x], p=p, x=x)
    gc.collect()
    assert (sys.getrefcount(p), sys.getrefcount(x)) == before
    ref = weakref.ref(x)
    del x
    gc.collect()
    assert ref() is None


def test_input_held_by_autograd_graph_and_dropped_by_python() -> None:
    """The C++ side keeps the Python object alive while it refers to the tensor: also across a trace."""
    x = torch.randn(3, requires_grad=True)
    x.tag = "kept"
    y = (x * x).sum()
    run(lambda: [x + 1], x=x)
    del x
    gc.collect()
    leaf = y.grad_fn.next_functions[0][0].next_functions[0][0].variable
    assert leaf.tag == "kept"
    y.backward()
    assert torch.equal(leaf.grad, 2 * leaf.detach())


@pytest.mark.parametrize("swallow", [Exception, BaseException])
def test_data_dependence_declines_and_sticks(swallow: type[BaseException]) -> None:
    x = torch.randn(3)

    def f() -> list[torch.Tensor]:
        try:
            if x.sum() > 0:
                return [x]
        except swallow:
            pass
        return [x + 1]

    with pytest.raises(_C.Declined, match="data-dependent"):
        run(f, x=x)
    assert isinstance((x + 1).sum().item(), float)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.item() if x.dim() == 0 else x.sum().item(),
        lambda x: int(x.sum()),
        lambda x: bool(x.any()),
        lambda x: torch.equal(x, x),
        lambda x: torch.nonzero(x),
        lambda x: x[x > 0],
        lambda x: torch.masked_select(x, x > 0),
        lambda x: torch.unique(x),
        lambda x: torch.allclose(x, x),
        lambda x: range(x.sum().int()),
        lambda x: torch.full((2,), x.sum()),
        lambda x: torch.bincount(x.abs().int()),
    ],
)
def test_reads_decline(read: Any) -> None:
    x = torch.rand(3)
    with pytest.raises(_C.Declined):
        run(lambda: [read(x), x][1:], x=x)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.numpy(),
        lambda x: x.tolist(),
        lambda x: x.data_ptr(),
        lambda x: torch.tensor([x[0], x[1]]),
        lambda x: torch.to_dlpack(x),
    ],
)
def test_raw_data_is_out_of_reach(read: Any) -> None:
    x = torch.rand(3)
    with pytest.raises((RuntimeError, BufferError)):
        run(lambda: [read(x), x][1:], x=x)


def test_values_of_constants_are_known() -> None:
    x = torch.rand(3)

    def f() -> list[torch.Tensor]:
        n = torch.tensor([1, 2, 3]).sum().item()
        if torch.arange(5)[2] == 2 and torch.linspace(0, 1, 3)[1].item() == 0.5:
            n += 1
        c = torch.tensor(1.0)
        c += 4
        where = torch.nonzero(torch.tensor([0, 1, 1])).flatten()
        return [x * n + c.item(), where]

    traced = run(f, x=x)
    assert torch.equal(traced.run([x])[0], x * 7 + 5) and traced.run([x])[1].tolist() == [1, 2]
    mixed = torch.tensor(2.0)
    with pytest.raises(_C.Declined):
        run(lambda: [mixed.mul_(x[0]), x * mixed.item()], x=x, mixed=mixed)


def test_constant_written_by_the_program_is_fresh_each_call() -> None:
    x = torch.ones(2)

    def f() -> list[torch.Tensor]:
        c = torch.tensor([1.0, 2.0])
        c += x
        return [c]

    traced = run(f, x=x)
    assert [traced.run([x])[0].tolist() for _ in range(3)] == [[2.0, 3.0]] * 3


def test_numpy_constant_is_copied() -> None:
    import numpy as np

    array, x = np.ones(3, dtype=np.float32), torch.zeros(3)
    traced = run(lambda: [x + torch.from_numpy(array)], x=x)
    array[:] = 7
    assert traced.run([x])[0].tolist() == [1, 1, 1]


def test_user_errors_pass_through() -> None:
    x, y = torch.rand(3), torch.rand(4)
    for bad in (
        lambda: x + y,
        lambda: x.view(7),
        lambda: x @ y,
        lambda: x.int().add_(0.5),
        lambda: torch.cat([x, y[None]]),
    ):
        with pytest.raises(Exception) as eager:
            bad()
        with pytest.raises(type(eager.value)):
            run(lambda: [bad()], x=x, y=y)  # noqa: B023


def test_write_to_expanded_memory_is_refused_as_in_eager() -> None:
    x = torch.rand(3, 1)
    with pytest.raises(RuntimeError, match="single memory location"):
        run(lambda: [x.clone().expand(3, 4).add_(1)], x=x)


def test_dead_tensors() -> None:
    x, kept = torch.rand(3), []
    run(lambda: [kept.append(x + 1), x + 2][1:], x=x)
    with pytest.raises(RuntimeError, match="finished trace"):
        kept[0] + 1
    repr(x)


def test_another_thread_sees_the_real_tensors() -> None:
    lin, x, got = torch.nn.Linear(3, 3), torch.rand(2, 3), []
    expected = lin(x)

    def f() -> list[torch.Tensor]:
        t = threading.Thread(target=lambda: got.append(lin(x).detach()))
        t.start()
        t.join()
        return [lin(x)]

    _C.trace_function(f, [("x", "user", x), ("w", "param", lin.weight), ("b", "param", lin.bias)])
    assert torch.equal(got[0], expected)


def test_nested_trace_declines() -> None:
    x = torch.rand(3)
    with pytest.raises(_C.Declined):
        run(lambda: [run(lambda: [x + 1], x=x), x][1:], x=x)
    assert torch.equal(run(lambda: [x + 1], x=x).run([x])[0], x + 1)


def test_exception_restores() -> None:
    x = torch.rand(3)

    def f() -> list[torch.Tensor]:
        x.add_(1)
        raise KeyError("mine")

    before = x.clone()
    with pytest.raises(KeyError):
        run(f, x=x)
    assert torch.equal(x, before) and torch.zeros(2).tolist() == [0, 0]


def test_untraceable_inputs() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    for t in (
        torch.eye(2).to_sparse(),
        torch.rand(2).to_mkldnn(),
        TwoTensor(torch.rand(2), torch.rand(2)),
        *([torch.rand(2, names=("a",))] if hasattr(torch.Tensor, "rename") else []),  # (gone with torch 2.13)
    ):
        with pytest.raises(_C.Declined, match="untraceable"):
            run(list, t=t)


def test_dispatch_mode_declines() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    x = torch.rand(3)
    with pytest.raises(_C.Declined, match="TorchDispatchMode"), Mode():
        run(lambda: [x + 1], x=x)


@pytest.mark.skipif(not hasattr(torch.ops.aten, "shallow_copy_data_"), reason="torch 2.15 has it")
def test_data_assigned_by_an_operator_declines() -> None:
    x, y = torch.rand(3), torch.rand(3)
    with pytest.raises(_C.Declined, match="the memory of another one"):
        run(lambda: [torch.ops.aten.shallow_copy_data_(x, y) + 1], x=x, y=y)


def test_function_mode_sees_each_call_once() -> None:
    from torch.overrides import TorchFunctionMode

    calls: list[str] = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(func.__name__)
            return func(*args, **(kwargs or {}))

    x = torch.rand(2, 3, 4)

    def f() -> list[torch.Tensor]:
        with Mode():
            return (
                [torch.cummax(x, 0)[0], torch.histc(x)]
                if False
                else [torch.logcumsumexp(x, 1), torch.renorm(x, 2, 0, 1.0)]
            )

    run(f, x=x)
    assert calls == ["logcumsumexp", "renorm"]


def test_autocast_leaves_nothing_behind() -> None:
    lin, x = torch.nn.Linear(3, 3), torch.rand(2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        expected = lin(x)
        _C.trace_function(lambda: [lin(x)], [("x", "user", x), ("w", "param", lin.weight), ("b", "param", lin.bias)])
        assert torch.is_autocast_cache_enabled()
        after = lin(x)
    assert not _C.is_trace_tensor(after) and torch.equal(after, expected)

    def f() -> list[torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=True):
            return [lin(x)]

    _C.trace_function(f, [("x", "user", x), ("w", "param", lin.weight), ("b", "param", lin.bias)])
    with torch.autocast("cpu", torch.bfloat16):
        assert not _C.is_trace_tensor(lin(x))


def test_inference_tensors() -> None:
    with torch.inference_mode():
        x = torch.rand(3)

    def f() -> list[torch.Tensor]:
        assert x.is_inference()
        y = x[1:]
        assert y.is_inference()
        with torch.inference_mode():
            x.mul_(2)
            z = x + 1
            assert z.is_inference()
        return [y, z]

    before = x.clone()
    traced = run(f, x=x)
    assert torch.equal(x, before) and x.is_inference()
    with torch.inference_mode():
        assert torch.equal(traced.run([x])[1], before * 2 + 1)


def test_overlapping_storages_that_are_written_decline() -> None:
    import numpy as np

    array = np.zeros(4, dtype=np.float32)
    a, b = torch.from_numpy(array), torch.from_numpy(array[1:])
    run(lambda: [a[1:] + b], a=a, b=b)
    with pytest.raises(_C.Declined, match="overlap"):
        run(lambda: [a.add_(1), b + 1], a=a, b=b)


def test_gradient_state_changes_decline() -> None:
    p = torch.nn.Parameter(torch.rand(3))
    x = torch.rand(3)

    def backward() -> list[torch.Tensor]:
        (p * x).sum().backward()
        return [x]

    with pytest.raises(_C.Declined, match="grad was assigned"):
        run(backward, p=p, x=x)
    assert p.grad is None


def test_no_real_tensor_is_touched() -> None:
    """A tensor met by surprise is lifted; without the callback the trace stops."""
    x, hidden = torch.rand(3), torch.rand(3)
    version = hidden._version
    before = hidden.clone()
    traced = run(lambda: [hidden.add_(x)], x=x)
    assert torch.equal(hidden, before) and hidden._version == version and len(traced.inputs) == 2
    with pytest.raises(_C.Declined, match="unknown tensor"):
        _C.trace_function(lambda: [hidden.add_(x)], [("x", "user", x)], lift_unknown=False)
    assert torch.equal(hidden, before) and hidden._version == version


def test_vmap_and_functorch_grad() -> None:
    x, w = torch.rand(3, 4), torch.rand(4)

    def f() -> list[torch.Tensor]:
        return [torch.vmap(lambda r: (r * w).sum())(x), torch.func.grad(lambda v: (x @ v).sin().sum())(w)]

    traced = run(f, x=x, w=w)
    for got, expected in zip(traced.run(traced.inputs), f(), strict=True):
        assert torch.allclose(got, expected)


def test_lstm_without_gradients_has_no_workspace() -> None:
    """torch's shape function promises an empty workspace where eager returns an undefined tensor."""
    lstm, x = torch.nn.LSTM(4, 5), torch.randn(3, 2, 4)

    def f() -> list[torch.Tensor]:
        with torch.no_grad():
            return [lstm(x)[0]]

    traced = _C.trace_function(f, [("x", "user", x), *((n, "param", p) for n, p in lstm.named_parameters())])
    layer = next(line for line in traced.text.splitlines() if "mkldnn_rnn_layer" in line)
    assert layer.split(" = ")[0].rstrip().endswith("_"), layer
    with torch.no_grad():
        assert torch.equal(traced.run(traced.inputs)[0], f()[0])
    assert not traced.mismatches
