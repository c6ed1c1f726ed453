"""The programs of benchmarks/sized_workloads.py against eager and fp64, at each of their sizes."""

from __future__ import annotations

import copy
from typing import Any

import torch
from comparing import tensors_of
from sized_workloads import WORKLOADS
from torch.utils._pytree import tree_map

import flashover

# Detection compiles each size of an image (tests/sizes/test_detection.py).
NAMES = [name for name in WORKLOADS if not name.startswith("detection")]


def off(got: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """By how much of its length the vector of all numbers is off."""
    a, b = (torch.cat([t.detach().double().flatten() for t in ts]) for ts in (got, exact))
    return float((a - b).norm() / b.norm())


def run(model: torch.nn.Module, args: Any, training: bool, double: bool = False) -> tuple[list[Any], list[Any]]:
    """The results that are numbers, and the gradients of their squares."""
    if double:
        args = tree_map(lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, args)
    with torch.set_grad_enabled(training):
        results = [t for t in tensors_of(model(*args)) if t.is_floating_point()]
    if not training:
        return results, []
    model.zero_grad()
    torch.stack([t.square().mean() for t in results if t.requires_grad]).sum().backward()
    return [t.detach() for t in results], [p.grad for p in model.parameters() if p.grad is not None]


def check(name: str, device: str, sizes: slice = slice(None)) -> int:
    """Right at these of its sizes; how many graphs that took."""
    workload = WORKLOADS[name]
    torch.manual_seed(0)
    eager = workload.make().to(device)
    exact, compiled = copy.deepcopy(eager).double(), flashover.compile(copy.deepcopy(eager))
    if hasattr(exact, "set_experts_implementation"):
        exact.set_experts_implementation("eager")  # grouped_mm takes no fp64
    before = flashover.compile_stats()["graphs"]
    for size in workload.sizes[sizes]:
        args = tree_map(lambda t: t.to(device) if isinstance(t, torch.Tensor) else t, workload.inputs(size))
        (got, gradients), (want, wanted) = (run(m, args, workload.training) for m in (compiled, eager))
        results, exactly = run(exact, args, workload.training, double=True)
        for g, w in zip(got, want, strict=True):
            assert g.shape == w.shape and g.stride() == w.stride() and g.dtype == w.dtype, f"{name}, {size}"
        assert off(got, results) <= 3 * off(want, results) + 1e-6, f"{name}, {size}"
        if workload.training:  # (where a ReLU is nearly 0, either of them may take the other side)
            assert len(gradients) == len(wanted) == len(exactly), f"{name}, {size}"
            assert off(gradients, exactly) <= 3 * off(wanted, exactly) + 2e-2, f"{name}, {size}: gradients"
    return flashover.compile_stats()["graphs"] - before
