"""A compiled call against the same call in eager: structure, dtypes, shapes, strides, values (fp64 is the arbiter where
they differ), sharing of memory, what is written, gradients, the random generator and errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import flashover

Declined = (flashover.exc.Unsupported, flashover.exc.BackendCompilerFailed, RuntimeWarning)  # see pyproject.toml
EPS = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1.2e-7, torch.float64: 2.3e-16}
EPS |= {torch.complex64: 1.2e-7, torch.complex128: 2.3e-16}


def tensors_of(tree: Any) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


def copied(tree: Any, wide: bool = False) -> Any:
    """Copies with the same strides; one object stays one object. `wide`: in double precision."""
    memo: dict[int, tuple[Tensor, Tensor]] = {}

    def one(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if id(x) not in memo:
            y = x.detach().clone()
            if y.stride() != x.stride() and x.numel():
                reach = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
                y = x.detach().as_strided((reach,), (1,)).clone().as_strided(x.shape, x.stride())
            if wide and (y.is_floating_point() or y.is_complex()):
                y = y.to(torch.complex128 if y.is_complex() else torch.float64)
            memo[id(x)] = (x, y.requires_grad_(x.requires_grad))
        return memo[id(x)][1]

    return tree_map(one, tree)


@dataclass
class Outcome:
    result: Any = None
    error: Exception | None = None
    inputs: list[Tensor] = field(default_factory=list)
    gradients: tuple[Tensor | None, ...] = ()
    generator: Tensor | None = None


def outcome(call: Callable, args: Any, kwargs: Any, leaves: list[Tensor] | None = None, seed: int = 0) -> Outcome:
    """Runs it; `leaves`: what to differentiate by beside the arguments."""
    torch.manual_seed(seed)
    given = tensors_of((args, kwargs))
    out = Outcome(inputs=given)
    try:
        out.result = call(*args, **kwargs)
        out.generator = torch.get_rng_state()
        results = [t for t in tensors_of(out.result) if t.requires_grad]
        by = [t for t in dict.fromkeys([*given, *(leaves or [])]) if t.requires_grad and t.is_leaf]
        if results and by:
            numbers = torch.Generator().manual_seed(5)
            wide = [torch.complex128 if t.is_complex() else torch.float64 for t in results]
            tangents = [
                torch.empty_like(t.detach()).copy_(torch.randn(t.shape, dtype=w, generator=numbers))
                for t, w in zip(results, wide, strict=True)
            ]
            out.gradients = torch.autograd.grad(results, by, tangents, allow_unused=True)
    except Exception as e:
        out.error = e
    return out


def kinds(t: Tensor) -> Tensor:
    t = torch.view_as_real(t) if t.is_complex() else t
    return torch.where(t.isnan(), 3, torch.where(t == math.inf, 1, torch.where(t == -math.inf, 2, 0)))


def error_of(t: Tensor, exact: Tensor) -> float:
    difference = (t.to(torch.complex128) - exact.to(torch.complex128)).abs()
    return difference.nan_to_num(0, 0, 0).max().item()


def differs(got: Tensor, wanted: Tensor, exact: Tensor | None) -> str | None:
    """Why a tensor is not the one of eager."""
    if got.dtype != wanted.dtype or got.shape != wanted.shape:
        return f"{got.dtype}{list(got.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
    if got.requires_grad != wanted.requires_grad or got.is_conj() != wanted.is_conj():
        return "requires_grad or is_conj"
    if wanted.numel() and got.stride() != wanted.stride():
        return f"strides {got.stride()} instead of {wanted.stride()}"
    got, wanted = got.detach().resolve_conj().resolve_neg(), wanted.detach().resolve_conj().resolve_neg()
    if torch.equal(got, wanted):
        return None
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return f"{(got != wanted).sum().item()} of {wanted.numel()} differ"
    if exact is not None and exact.shape != wanted.shape:
        exact = None
    right = kinds(got) == kinds(wanted)
    if exact is not None:
        right |= kinds(got) == kinds(exact.detach().to(wanted.dtype))
    if not right.all():
        return "not finite elsewhere"
    finite = torch.view_as_real(wanted) if wanted.is_complex() else wanted
    finite = finite[finite.isfinite()].abs()
    scale = EPS[wanted.dtype] * (finite.max().item() if finite.numel() else 0.0)
    distance = error_of(got, wanted)
    if distance <= 4 * scale:
        return None
    if exact is not None:
        ours, eager = error_of(got, exact.detach()), error_of(wanted, exact.detach())
        return None if ours <= 2 * eager + 8 * scale else f"error {ours:.3g}, eager's {eager:.3g}"
    return f"off by {distance:.3g}"


def sharing(out: Outcome) -> list[Any]:
    """Of every result: the first of inputs and results with its memory, and whether it is that object."""
    seen: list[Tensor] = list(out.inputs)
    found = []
    for t in tensors_of(out.result):
        same = [i for i, s in enumerate(seen) if s.untyped_storage()._cdata == t.untyped_storage()._cdata]
        found.append((same[0] if same else -1, [i for i, s in enumerate(seen) if s is t][:1]))
        seen.append(t)
    return found


def shape_of(tree: Any) -> Any:
    return tree_map(lambda x: "tensor" if isinstance(x, Tensor) else type(x).__name__, tree)


def disagreement(got: Outcome, wanted: Outcome, exact: Callable[[], Outcome]) -> str | None:
    if wanted.error is not None or got.error is not None:
        same = type(got.error) is type(wanted.error)
        return None if same else f"raises {got.error!r:.300}, eager {wanted.error!r:.300}"
    if shape_of(got.result) != shape_of(wanted.result):
        return f"{shape_of(got.result)} instead of {shape_of(wanted.result)}"
    if sharing(got) != sharing(wanted):
        return f"memory shared as {sharing(got)}, eager {sharing(wanted)}"
    assert got.generator is not None and wanted.generator is not None
    if not torch.equal(got.generator, wanted.generator):
        return "the random generator"
    arbiter: Outcome | None = None

    def parts(o: Outcome) -> dict[str, list[Any]]:
        return {"result": tensors_of(o.result), "input": o.inputs, "gradient": list(o.gradients)}

    for what, tensors in parts(got).items():
        others = parts(wanted)[what]
        if len(tensors) != len(others):
            return f"{len(tensors)} {what}s instead of {len(others)}"
        for i, (a, b) in enumerate(zip(tensors, others, strict=True)):
            if (a is None) != (b is None):
                return f"{what} {i}: {a is None} that there is none"
            why = None if a is None else differs(a, b, None)
            if why and (b.is_floating_point() or b.is_complex()):
                arbiter = arbiter or exact()
                known = parts(arbiter)[what] if arbiter.error is None else []
                why = differs(a, b, known[i] if i < len(known) else None)
            if why:
                return f"{what} {i}: {why}"
    for a, b in zip(tree_leaves(got.result), tree_leaves(wanted.result), strict=True):
        if not isinstance(b, Tensor) and a != b and not (a != a and b != b):
            return f"{a!r} instead of {b!r}"
    return None
