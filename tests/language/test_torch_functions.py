"""torch's own state and functions as programs use them: devices, precisions, torch.compile's marks and regions."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from comparing import captured_whole, whole
from interpreters import fresh, python
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashover

X = torch.linspace(-2, 2, 2 * 8 * 16).reshape(2, 8, 16)


def test_torch_compiles_count_of_modules_is_not_guarded() -> None:
    """torch.compile notes on each module that is made how often it ran: LlamaForCausalLM recompiled without end."""
    code = """
import torch, torch._dynamo.mutation_guard as guard
import flashover
guard.install_generation_tagging_init()
def f(x):
    return x + len(torch.nn.Module()._parameters)
fast = flashover.compile(f, fullgraph=True)
fast(torch.ones(3))
for _ in range(4):
    guard.GenerationTracker.generation += 1
    assert torch.equal(fast(torch.ones(3)), torch.ones(3))
print(flashover.compile_stats()["frames"])
"""
    done = python("-c", code)
    assert done.stdout.strip() == "1", done.stdout + done.stderr


def test_questions_about_devices() -> None:
    def ask(x: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_available() and torch.cuda.is_bf16_supported():
            return x.bfloat16().float() * torch.cuda.get_device_properties(0).multi_processor_count
        return x + torch.cuda.device_count() + len(torch.cuda.get_arch_list()) + torch.accelerator.device_count()

    captured_whole(ask, X[0])


def test_a_capture_leaves_torchs_precisions_alone():
    def precisions() -> list[str]:
        pairs = [(b, op) for b in ("mkldnn", "cuda") for op in ("matmul", "conv")]
        return [torch._C._get_fp32_precision_getter(*p) for p in pairs]

    before = precisions()
    try:
        torch._C._set_fp32_precision_setter("mkldnn", "matmul", "none")
        none = precisions()
        flashover.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        assert precisions() == none
    finally:
        torch._C._set_fp32_precision_setter("mkldnn", "matmul", before[0])


Tensor = torch.Tensor


def x() -> Tensor:
    return torch.arange(12.0).reshape(3, 4) * 0.1


def test_torch_compile_inside() -> None:
    inner = torch.compile(lambda v: v + 1, backend="eager")
    before = flashover.compile(lambda v: inner(v) * 2)
    within = flashover.compile(lambda v: torch.compile(lambda w: w + 1, backend="eager")(v) * 2)
    for _ in range(2):
        assert torch.equal(before(torch.ones(3)), torch.full((3,), 4.0))
        assert torch.equal(within(torch.ones(3)), torch.full((3,), 4.0))


def test_sdpa_kernel() -> None:
    def f(q: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return nn.functional.scaled_dot_product_attention(q, q, q)

    q = x().reshape(1, 1, 3, 4)
    flags = torch.backends.cuda.flash_sdp_enabled()
    torch.testing.assert_close(whole(f)(q), f(q))
    assert torch.backends.cuda.flash_sdp_enabled() == flags


def test_legacy_tensor_types() -> None:
    def f(a: Tensor, n: Tensor) -> list[bool]:
        kinds = (torch.FloatTensor, torch.LongTensor, (int, torch.FloatTensor), torch.cuda.FloatTensor)
        return [isinstance(t, k) for t in (a, a + 1, n, n.double()) for k in kinds]

    assert whole(f)(x(), torch.ones(2, dtype=torch.long)) == f(x(), torch.ones(2, dtype=torch.long))


def test_user_code_is_told_that_it_is_compiled() -> None:
    def f(a: Tensor) -> Any:
        return a + 1, torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling(), torch.compiler.is_exporting()

    assert whole(f)(x())[1:] == (True, True, False)


def test_nested_compile_region() -> None:
    @torch.compiler.nested_compile_region
    def region(a: Tensor, k: int = 2) -> Tensor:
        return a.sin() * k

    torch.testing.assert_close(whole(lambda a: region(a) + region(a, k=3))(x()), x().sin() * 5)


FILLED = {
    "full": lambda t: torch.full((2, 3), t[0]),
    "another dtype": lambda t: torch.full((2,), t[1], dtype=torch.float64),
    "whole": lambda t: torch.full((2,), t.argmax()),
    "bool": lambda t: torch.full((2,), (t > 0).any()),
    "whole as float": lambda t: torch.full((2,), t.argmax(), dtype=torch.float32),
    "by keyword": lambda t: torch.full(size=(2,), fill_value=t.max()),
    "full_like": lambda t: torch.full_like(t, t.max()),
    "new_full": lambda t: t.new_full((2, 2), t.max()),
    "unbound": lambda t: torch.Tensor.new_full(t, (2,), t.max()),
    "anchors": lambda t: torch.cat([torch.full((i + 1, 1), s, dtype=t.dtype) for i, s in enumerate(t)]),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", FILLED)
def test_full_of_a_tensor(name: str, dynamic: bool | None) -> None:
    """Torch asks for the tensor's number, which no graph has: the tensor fills instead."""
    fast = flashover.compile(FILLED[name], fullgraph=True, dynamic=dynamic)
    for x in (torch.tensor([1.5, -2.0, 3.0]), torch.tensor([-1.0, 7.0, 0.5])):
        got, want = fast(x), FILLED[name](x)
        assert got.dtype == want.dtype and torch.equal(got, want)


def test_what_full_makes_of_a_tensor_has_no_gradient_and_cuts_nothing_off() -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        return (torch.full((2,), x.sum()) * x.sum()).sum()

    def cut(x: torch.Tensor) -> torch.Tensor:  # of a number that uint8 cannot hold torch raises
        return torch.full((2,), x.sum(), dtype=torch.uint8) + 1

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (got,) = torch.autograd.grad(flashover.compile(product, fullgraph=True)(x), x)
    torch.testing.assert_close(got, torch.tensor([6.0, 6.0]))
    fast = flashover.compile(cut)
    assert torch.equal(fast(x.detach()), cut(x.detach()))
    for call in (fast, cut):
        with pytest.raises(RuntimeError, match="cannot be converted"):
            call(torch.tensor([-3.0, 1000.0]))


EINSUM = """
import torch, flashover
from torch.backends import opt_einsum
assert opt_einsum.is_available()
def f(a, b, c):
    return torch.einsum("ij,jk,kl->il", a, b, c)
fast = flashover.compile(f, fullgraph=True)
for n in (3, 4):
    x = torch.randn(n, 4), torch.randn(4, 5), torch.randn(5, 6)
    torch.testing.assert_close(fast(*x), f(*x))
import decimal
assert decimal.getcontext().prec == 28
"""


def test_einsum_with_opt_einsum_installed(tmp_path: Any) -> None:
    """Its search for the best order counts in numbers of the decimal module."""
    package = tmp_path / "opt_einsum"
    package.mkdir()
    (package / "__init__.py").write_text("from .contract import contract_path\n")
    (package / "contract.py").write_text(
        "from decimal import Decimal\n"
        "def contract_path(subscripts, *operands, optimize=True):\n"
        "    cost = Decimal(1)\n"
        "    for x in operands:\n"
        "        for n in x.shape:\n"
        "            cost = cost * Decimal(n)\n"
        "    return [(0, 1), (0, 1)], cost / max(cost, Decimal(1))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    done = fresh("-c", EINSUM, env=environment)  # torch looks for the module when it is imported
    assert done.returncode == 0, done.stderr


def test_a_switch_that_is_asked_after_it_was_set() -> None:
    """The question ends the graph, and the switch stands as the program set it."""
    forward = torch.autograd.forward_ad

    def f(x: torch.Tensor) -> tuple[torch.Tensor, list[bool]]:
        said = []
        try:
            torch._C._set_fwd_grad_enabled(False)
            said.append(forward._is_fwd_grad_enabled())
            with forward._set_fwd_grad_enabled(True):
                said.append(forward._is_fwd_grad_enabled())
            said.append(forward._is_fwd_grad_enabled())
        finally:
            torch._C._set_fwd_grad_enabled(True)
        return x * 2, said

    fast = flashover.compile(f)
    for _ in range(2):
        assert fast(torch.ones(2))[1] == [False, True, False]
        assert forward._is_fwd_grad_enabled()


def test_a_first_call_under_the_profiler_that_notes_shapes() -> None:
    lstm = torch.nn.LSTM(3, 4)
    with torch.no_grad(), torch.profiler.profile(record_shapes=True) as profile:
        flashover.compile(lstm)(torch.ones(2, 1, 3))
        torch.ones(3) * 2
    assert any(e.key == "aten::mul" for e in profile.key_averages())


@pytest.mark.parametrize(
    "f",
    [
        lambda a: torch.tensor([a[0, 0], a[1, 0]]),
        lambda a: torch.tensor([a[0, 0], 1, 2.5, a.sum()]),
        lambda a: torch.tensor([[a[0, 0], a[1, 0]], [a.max(), a.min()]], dtype=torch.float64),
        lambda a: (torch.tensor([a.argmax(), 3]), torch.as_tensor((a.argmax(), a.sum()))),
        lambda a: torch.tensor([a[0, 0].double(), a[0, 1].half()]),
        lambda a: (a.new_tensor([a.sum(), 1.0]), torch.tensor([a[0, 0] > 0, a[0, 1] > 0])),
        lambda a: torch.FloatTensor([a.sum(), a.argmax()]),
    ],
)
def test_tensors_of_lists_of_tensors(f: Any) -> None:
    for gradient in (False, True):
        a = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).requires_grad_(gradient)
        want, got = f(a), whole(f)(a)
        for one, other in zip(*((r if isinstance(r, tuple) else (r,)) for r in (want, got)), strict=True):
            assert one.dtype == other.dtype and not other.requires_grad
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


def test_numbers_that_do_not_fit_are_refused_as_eager_refuses_them() -> None:
    for f in (
        lambda a: torch.tensor([a.argmax() * 1000], dtype=torch.int8),
        lambda a: torch.tensor([a[0]], dtype=torch.int32),
    ):
        with pytest.raises(Exception) as theirs:
            f(torch.tensor([0.0, 1.0]))
        with pytest.raises(type(theirs.value)):
            flashover.compile(f)(torch.tensor([0.0, 1.0]))


NAMED: dict[str, Any] = {
    "rename": lambda x: (x.rename("N", "C") + 1).names,
    "equal": lambda x: torch.equal(x.rename("N", "C"), x.rename("N", "D")),
    "refine_names": lambda x: x.refine_names("N", "C").align_to("C", "N").sum("N").names,
    "factory": lambda x: (torch.zeros(2, 3, names=("N", "C")) + x).names,
}


@pytest.mark.skipif(not hasattr(torch.Tensor, "rename"), reason="gone with torch 2.13")
@pytest.mark.filterwarnings("ignore:Named tensors:UserWarning")
@pytest.mark.parametrize("f", NAMED.values(), ids=NAMED)
def test_names_that_the_program_gives(f: Any) -> None:
    """No graph says them: the call breaks there."""
    x = torch.ones(2, 3)
    assert flashover.compile(f)(x) == f(x)


def test_a_capsule_gives_its_tensor_once() -> None:
    x = torch.arange(6.0)

    def f(x: torch.Tensor) -> torch.Tensor:
        capsule = torch.utils.dlpack.to_dlpack(x)
        return torch.asarray(capsule) + 1

    fast = flashover.compile(f)
    for _ in range(2):
        torch.testing.assert_close(fast(x), x + 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_complex_numbers_under_a_default_dtype(dtype: torch.dtype) -> None:
    """There are no complex halves among what torch infers."""

    def f() -> Any:
        return torch.full((2,), 1 + 1j), torch.full((2,), 1.0)

    torch.set_default_dtype(dtype)
    try:
        got, want = flashover.compile(f)(), f()
    finally:
        torch.set_default_dtype(torch.float32)
    assert [t.dtype for t in got] == [t.dtype for t in want]


def test_ranges_of_the_profiler_over_several_calls() -> None:
    """A call may enter what another one leaves; ranges that compiled code enters and leaves are not seen."""
    kept = torch.profiler.record_function("kept")

    class Timer:
        def __enter__(self) -> None:
            self.range = torch.profiler.record_function("of a timer")
            self.range.__enter__()

        def __exit__(self, *error: object) -> None:
            self.range.__exit__(*error)

    timer = Timer()

    def enter(x: torch.Tensor) -> torch.Tensor:
        kept.__enter__()
        timer.__enter__()
        return x + 1

    def leave(x: torch.Tensor) -> torch.Tensor:
        timer.__exit__(None, None, None)
        kept.__exit__(None, None, None)
        return x + 2

    enter, leave = flashover.compile(enter, fullgraph=True), flashover.compile(leave, fullgraph=True)
    x = torch.ones(3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(3):
            torch.testing.assert_close(leave(enter(x)), x + 3)
    counts = {e.key: e.count for e in profile.key_averages()}
    assert (counts["kept"], counts["of a timer"]) == (3, 3)
