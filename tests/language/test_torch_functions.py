"""torch's own state and functions as programs use them: devices, precisions, torch.compile's marks and regions."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch
from comparing import captured_whole, whole
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
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
