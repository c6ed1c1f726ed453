"""What is computed from parameters follows every way in which a parameter can be changed, seen by autograd or not."""

from __future__ import annotations

import copy
import ctypes
import gc
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import safetensors.torch
import torch

from flashover import _C

# out = x + exp(weight): exp(weight) is frozen.
PLAN = """
plan "x86-64" {
  input 0 : f32[8,4] user
  input 1 : f32[8,4] param frozen
  t0 : f32[8,4] = input 0
  t1 : f32[8,4] = input 1
  t2 : f32[8,4] = frozen
  t3 : f32[8,4] = output 0
  frozen call aten.exp.default(t1) -> t2
  call out aten.add.out(t0, t2, 1) -> t3 "add test_frozen.py:1"
  return t3 : f32[8,4]
}
"""


class Case:
    """A compiled call beside the parameter it reads."""

    def __init__(self) -> None:
        self.m = torch.nn.Linear(4, 8)
        self.plan = _C._load_plan(PLAN)
        self.x = torch.randn(8, 4)
        self.check("first call")
        self.check("second call")
        assert self.plan.counters["frozen_runs"] == 1

    def check(self, what: str) -> None:
        with torch.no_grad():
            # Not through .data or .numpy(), which would be reported.
            expected = self.x + self.m.weight.exp()
            (got,) = self.plan(self.x, self.m.weight)
        assert torch.equal(got, expected), what


def in_place(c: Case) -> None:
    with torch.no_grad():
        c.m.weight.mul_(2)


def data_times(c: Case) -> None:
    c.m.weight.data *= 2


def data_item(c: Case) -> None:
    c.m.weight.data[0, 0] = 7


def data_assigned(c: Case) -> None:
    c.m.weight.data = torch.randn(8, 4)


def load_state_dict(c: Case) -> None:
    c.m.load_state_dict(torch.nn.Linear(4, 8).state_dict())


def load_state_dict_assign(c: Case) -> None:
    c.m.load_state_dict(torch.nn.Linear(4, 8).state_dict(), assign=True)


def optimizer(c: Case) -> None:
    o = torch.optim.SGD(c.m.parameters(), lr=0.1)
    c.m(torch.randn(3, 4)).sum().backward()
    o.step()


def fused_adam(c: Case) -> None:
    o = torch.optim.Adam(c.m.parameters(), lr=0.1, fused=True)
    c.m(torch.randn(3, 4)).sum().backward()
    o.step()


def ema(c: Case) -> None:
    other = copy.deepcopy(c.m)
    for p, q in zip(c.m.parameters(), other.parameters(), strict=True):
        p.data.mul_(0.9).add_(q.data + 1, alpha=0.1)


def swapped(c: Case) -> None:
    c.m.weight = torch.nn.Parameter(torch.randn(8, 4))


def swap_tensors(c: Case) -> None:
    torch.utils.swap_tensors(c.m.weight, torch.nn.Parameter(torch.randn(8, 4)))


def numpy_once(c: Case) -> None:
    c.m.weight.detach().numpy()[1, 1] = 5


def numpy_forced(c: Case) -> None:
    c.m.weight.numpy(force=True)[1, 1] = 5


def asarray(c: Case) -> None:
    numpy.asarray(c.m.weight.detach())[2, 2] = 5


def data_numpy(c: Case) -> None:
    c.m.weight.data.numpy()[3, 3] = -1


def untyped_storage(c: Case) -> None:
    c.m.weight.untyped_storage().copy_(torch.randn(8, 4).untyped_storage())


def typed_storage(c: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        c.m.weight.storage()[3] = 0.5


def address(c: Case) -> None:
    ctypes.memset(c.m.weight.data_ptr(), 0, 16)


def dlpack(c: Case) -> None:
    numpy.from_dlpack(c.m.weight.detach()).view()
    torch.from_dlpack(c.m.weight.detach()).mul_(3)


def set_source(c: Case) -> None:
    with torch.no_grad():
        c.m.weight.set_(torch.randn(8, 4))


def init(c: Case) -> None:
    torch.nn.init.uniform_(c.m.weight)


def vector(c: Case) -> None:
    n = sum(p.numel() for p in c.m.parameters())
    torch.nn.utils.vector_to_parameters(torch.randn(n), c.m.parameters())


def to_and_back(c: Case) -> None:
    c.m.double().float()
    with torch.no_grad():
        c.m.weight.add_(1)


def inference_mode(c: Case) -> None:
    with torch.inference_mode():
        c.m.weight.mul_(3)


def view(c: Case) -> None:
    with torch.no_grad():
        c.m.weight.view(-1)[2:9].zero_()


def foreach(c: Case) -> None:
    with torch.no_grad():
        torch._foreach_mul_([c.m.weight], 2.0)


def fused_sgd(c: Case) -> None:
    with torch.no_grad():
        torch._fused_sgd_([c.m.weight], [torch.randn(8, 4)], [], weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0,
                          nesterov=False, maximize=False, is_first_step=True)  # fmt: skip


def amp_unscale(c: Case) -> None:
    with torch.no_grad():
        torch._amp_foreach_non_finite_check_and_unscale_([c.m.weight], torch.zeros(1), torch.full((1,), 0.5))


CHANGES: list[Callable[[Case], None]] = [
    in_place, data_times, data_item, data_assigned, load_state_dict, load_state_dict_assign, optimizer, fused_adam,
    ema, swapped,
    swap_tensors, numpy_once, numpy_forced, asarray, data_numpy, untyped_storage, typed_storage, address, dlpack,
    set_source, init,
    vector, to_and_back, inference_mode, view, foreach, fused_sgd, amp_unscale,
]  # fmt: skip


def test_hooks_are_in_place() -> None:
    assert _C._escapes_tracked()


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_change_is_seen(change: Callable[[Case], None]) -> None:
    c = Case()
    for i in range(3):
        before = c.m.weight.detach().clone()
        change(c)
        assert i > 0 or not torch.equal(before, c.m.weight), "the test must change something"
        c.check(f"change {i}")
        c.check(f"after change {i}")
    gc.collect()
    c.check("at the end")


def late_writers() -> list[tuple[str, Callable[[torch.Tensor], Callable[[float], object]]]]:
    """Aliases made once and written later, again and again."""

    def by_address(p: torch.Tensor) -> Callable[[float], object]:
        floats = (ctypes.c_float * p.numel()).from_address(p.data_ptr())
        return lambda v: floats.__setitem__(5, v)

    def by_data(p: torch.Tensor) -> Callable[[float], object]:
        alias = p.data
        return lambda v: alias.fill_(v)

    def by_numpy(p: torch.Tensor) -> Callable[[float], object]:
        array = p.detach().numpy()
        return lambda v: array.fill(v)

    def by_storage(p: torch.Tensor) -> Callable[[float], object]:
        storage = p.untyped_storage()
        return lambda v: storage.fill_(int(v))

    def by_assigned(p: torch.Tensor) -> Callable[[float], object]:
        buffer = torch.randn(8, 4)
        p.data = buffer
        return lambda v: buffer.fill_(v)

    def by_dlpack(p: torch.Tensor) -> Callable[[float], object]:
        alias = torch.from_dlpack(p.detach())
        return lambda v: alias.fill_(v)

    return [("data", by_data), ("numpy", by_numpy), ("address", by_address), ("storage", by_storage),
            ("assigned", by_assigned), ("dlpack", by_dlpack)]  # fmt: skip


@pytest.mark.parametrize("make", [w[1] for w in late_writers()], ids=[w[0] for w in late_writers()])
@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
def test_an_alias_writes_later(make: Callable[[torch.Tensor], Callable[[float], object]], early: bool) -> None:
    m = torch.nn.Linear(4, 8)
    write = make(m.weight) if early else None
    c = Case.__new__(Case)
    c.m, c.plan, c.x = m, _C._load_plan(PLAN), torch.randn(8, 4)
    c.check("first call")
    if write is None:
        write = make(m.weight)
    c.check("alias made")
    for i in range(4):
        write(float(i))
        c.check(f"write {i}")
        c.check(f"after write {i}")
    write(0.25 if make.__name__ != "by_storage" else 9)
    del write
    gc.collect()
    c.check("alias gone")
    c.check("alias gone, again")


def test_buffer_numpy_writes_later() -> None:
    b = torch.randn(8, 4)
    plan, x = _C._load_plan(PLAN), torch.randn(8, 4)
    plan(x, b)
    array = b.numpy()  # keeps b alive, not another owner of the storage
    for i in range(3):
        array[i] = i
        assert torch.equal(plan(x, b)[0], x + b.exp())


def test_foreign_memory() -> None:
    array = numpy.random.rand(8, 4).astype(numpy.float32)
    p = torch.nn.Parameter(torch.from_numpy(array))
    plan, x = _C._load_plan(PLAN), torch.randn(8, 4)
    for i in range(3):
        array[i] = i
        with torch.no_grad():
            assert torch.equal(plan(x, p)[0], x + p.exp())
    assert plan.counters["frozen_runs"] == 3


def test_shared_memory() -> None:
    m = torch.nn.Linear(4, 8)
    m.share_memory()
    c = Case.__new__(Case)
    c.m, c.plan, c.x = m, _C._load_plan(PLAN), torch.randn(8, 4)
    c.check("first call")
    (ctypes.c_float * 32).from_address(m.weight.data_ptr())[3] = 4.0
    c.check("written")
    assert c.plan.counters["content_checks"] + c.plan.counters["frozen_runs"] >= 2


def test_files_mapped_privately_are_not_asked(tmp_path) -> None:
    torch.save(torch.randn(8, 4), tmp_path / "w.pt")
    w = torch.load(tmp_path / "w.pt", mmap=True)
    plan, x = _C._load_plan(PLAN), torch.randn(8, 4)
    for _ in range(3):
        plan(x, w)
    assert plan.counters["content_checks"] == 0
    w.mul_(2)
    assert torch.equal(plan(x, w)[0], x + w.exp())


@pytest.mark.parametrize("grad", [True, False])
def test_batch_norm_statistics(grad: bool) -> None:
    """Training mode writes them without bumping their versions."""
    plan = _C._load_plan(
        """plan "" {
          input 0 : f32[4] user
          input 1 : f32[4] buffer frozen
          input 2 : f32[4] buffer frozen
          t0 : f32[4] = input 0
          t1 : f32[4] = input 1
          t2 : f32[4] = input 2
          t3 : f32[4] = frozen
          t4 : f32[4] = output 0
          frozen call aten.add.Tensor(t1, t2, 1) -> t3
          call out aten.add.out(t0, t3, 1) -> t4
          return t4 : f32[4]
        }"""
    )
    bn, x = torch.nn.BatchNorm2d(4), torch.randn(4)
    for i in range(4):
        assert torch.equal(plan(x, bn.running_mean, bn.running_var)[0], x + (bn.running_mean + bn.running_var)), i
        version = bn.running_mean._version
        with torch.set_grad_enabled(grad):
            bn(torch.randn(2, 4, 5, 5))
        assert bn.running_mean._version == version, "torch has changed: the watch on batch norm may go"
    runs = plan.counters["frozen_runs"]
    bn.eval()(torch.randn(2, 4, 5, 5))
    plan(x, bn.running_mean, bn.running_var)
    plan(x, bn.running_mean, bn.running_var)
    assert plan.counters["frozen_runs"] <= runs + 1


def test_custom_operator_registered_late() -> None:
    c = Case()
    with torch.library._scoped_library("flashover_test", "DEF") as lib:
        lib.define("scale_(Tensor(a!) x) -> ()")

        def scale(x: torch.Tensor) -> None:
            torch.from_dlpack(x.detach()).mul_(2)

        lib.impl("scale_", scale, "CPU")
        for i in range(3):
            with torch.no_grad():
                torch.ops.flashover_test.scale_(c.m.weight)
            c.check(f"custom operator, call {i}")
            c.check(f"after call {i}")


def test_other_tensors_cost_nothing() -> None:
    c = Case()
    for _ in range(5):
        torch.randn(3).numpy()
        torch.randn(3).data.mul_(2)
        torch.randn(3).data_ptr()
        c.check("others escaped")
    assert c.plan.counters["frozen_runs"] == 1
    assert c.plan.counters["content_checks"] == 0


def save_pretrained(c: Case, folder: Path) -> None:
    from transformers import PretrainedConfig, PreTrainedModel

    class Model(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self, config: PretrainedConfig) -> None:
            super().__init__(config)
            self.inner = c.m

    Model(PretrainedConfig()).save_pretrained(folder)


CHECKPOINTS: dict[str, Callable[[Case, Path], object]] = {
    "torch.save": lambda c, folder: torch.save(c.m.state_dict(), folder / "m.pt"),
    "safetensors": lambda c, folder: safetensors.torch.save_model(c.m, str(folder / "m.safetensors")),
    "transformers": save_pretrained,
}


@pytest.mark.parametrize("how", CHECKPOINTS)
def test_weights_that_were_saved_are_not_compared_in_each_call(how: str, tmp_path: Path) -> None:
    c = Case()
    CHECKPOINTS[how](c, tmp_path)
    gc.collect()
    c.check("after it was saved")  # views of it were there meanwhile: one look
    checks = c.plan.counters["content_checks"]
    for _ in range(3):
        c.check("later")
    assert c.plan.counters["content_checks"] == checks and c.plan.counters["frozen_runs"] <= 2


def test_requires_grad_flip_keeps_the_frozen_part() -> None:
    c = Case()
    c.m.weight.requires_grad_(False)
    c.check("flipped")
    c.m.weight.requires_grad_(True)
    c.check("flipped back")
    assert c.plan.counters["frozen_runs"] == 1


def test_dead_parameters_are_not_kept_alive() -> None:
    import weakref

    c = Case()
    old = weakref.ref(c.m.weight)
    c.m.weight = torch.nn.Parameter(torch.randn(8, 4))
    gc.collect()
    assert old() is None
    c.check("new parameter")


def test_errors_name_the_line() -> None:
    plan = _C._load_plan(
        """plan "" {
          input 0 : f32[2,2] user
          t0 : f32[2,2] = input 0
          t1 : f32[2,2] = extern
          call aten.linalg_cholesky.default(t0, false) -> t1 "cholesky model.py:9"
          return t1 : f32[2,2]
        }"""
    )
    with pytest.raises(torch.linalg.LinAlgError, match=r"(?s)not positive-definite.*model\.py:9"):
        plan(-torch.eye(2))
    assert torch.equal(plan(torch.eye(2))[0], torch.eye(2))


def test_alias_outputs_are_views() -> None:
    plan = _C._load_plan(
        """plan "" {
          input 0 : f32[4,4] user
          return alias input 0 : f32[4]{5}
        }"""
    )
    x = torch.randn(4, 4)
    with torch.no_grad():
        (d,) = plan(x)
    assert d._base is x
    d.zero_()
    assert x.diagonal().eq(0).all() and x._version == d._version == 1
