"""torch's own samples of modules and optimizers, whole, against eager: forward and backward, twice. The graph is run
operator by operator (backend "eager"): quick, and kernels have their own sweeps. By hand: `pytest -m slow` builds
kernels, takes every sample and also evaluates; FLASHOVER_SAMPLE_DTYPE=float64 or bfloat16 for other dtypes."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import op_samples  # noqa: F401  torch's search of the stack is off
import pytest
import torch
from sample_judge import Declined, copied, differs, disagreement, outcome, shape_of, tensors_of
from torch.testing._internal.common_modules import ModuleInfo, module_db
from torch.testing._internal.common_optimizers import (
    OptimizerInfo,
    _get_optim_inputs_including_global_cliquey_kwargs,
    optim_db,
)

import flashover

DTYPE = getattr(torch, os.environ.get("FLASHOVER_SAMPLE_DTYPE", "float32"))
# What declines and runs eager, at least for some samples.
NOT_WHOLE = {
    "BatchNorm1d",  # momentum=None reads a counter
    "BatchNorm2d",
    "BatchNorm3d",
    "CTCLoss",
    "EmbeddingBag",
    "GaussianNLLLoss",
    "LazyConv1d",
    "LazyConv2d",
    "LazyConv3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "Transformer",
    "TransformerEncoder",
}


def check_module(info: ModuleInfo, backend: str, training: bool, limit: int) -> None:
    if DTYPE not in info.supported_dtypes("cpu"):
        pytest.skip("not for this dtype")
    torch.manual_seed(3)
    samples = info.module_inputs_func(info, device="cpu", dtype=DTYPE, requires_grad=training, training=training)
    step = max(1, len(samples) // limit)
    wrong, tried = [], 0
    for sample in samples[step // 2 :: step][:limit]:
        if sample.forward_input is None:
            continue

        def run(compiled: Callable, wide: bool = False, sample: Any = sample) -> Any:
            torch.manual_seed(7)
            given = sample.constructor_input
            module = info.module_cls(*given.args, **given.kwargs).to(DTYPE).train(training)
            module = module.to(torch.float64) if wide else module
            inputs = sample.forward_input
            args, kwargs = copied((inputs.args, inputs.kwargs), wide)
            flashover.reset()
            call = compiled(module)
            first = outcome(call, args, kwargs, list(module.parameters()))
            if first.error is not None:
                return first
            second = outcome(call, args, kwargs, list(module.parameters()))
            second.inputs = [*second.inputs, *first.gradients, *tensors_of(first.result), *module.buffers()]
            second.inputs = [t for t in second.inputs if t is not None]
            return second

        tried += 1
        wanted = run(lambda m: m)
        got = run(lambda m: flashover.compile(m, fullgraph=True, backend=backend))
        if isinstance(got.error, Declined):
            if info.module_cls.__name__ not in NOT_WHOLE and wanted.error is None:
                wrong.append(f"{sample.desc}: declined: {got.error}")
            got = run(lambda m: flashover.compile(m, backend=backend))
        why = disagreement(got, wanted, lambda: run(lambda m: m, wide=True))
        if why:
            wrong.append(f"{sample.desc} {sample.constructor_input.args} {sample.constructor_input.kwargs}: {why}")
    assert tried or not samples
    assert not wrong, "\n".join(wrong[:5])


def module_cases() -> list[Any]:
    return [pytest.param(i, id=i.formatted_name.removeprefix("nn_")) for i in module_db]


@pytest.mark.parametrize("info", module_cases())
def test_modules_train_as_eager(info: ModuleInfo) -> None:
    check_module(info, "eager", training=True, limit=1)


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("info", module_cases())
def test_modules_with_kernels(info: ModuleInfo, training: bool) -> None:
    check_module(info, "flashover", training, limit=1000)


def train(info: OptimizerInfo, kwargs: dict[str, Any], compiled: Callable, wide: bool = False) -> list[Any]:
    """Parameters, state and losses of a few steps."""
    numbers = torch.Generator().manual_seed(1)
    dtype = torch.float64 if wide else DTYPE
    parameters = [
        torch.nn.Parameter(torch.randn(s, generator=numbers, dtype=torch.float64).to(DTYPE).to(dtype))
        for s in ((5, 4), (4, 4), (4, 4))
    ]
    optimizer = info.optim_cls(parameters, **copy.deepcopy(kwargs))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.stack([(p * p).sum() for p in parameters]).sum()
        loss.backward()
        return loss

    step = compiled(lambda: optimizer.step(closure) if info.step_requires_closure else optimizer.step())
    losses = []
    for i in range(4):
        numbers.manual_seed(100 + i)
        for p in parameters:
            gradient = torch.randn(p.shape, generator=numbers, dtype=torch.float64).to(DTYPE).to(dtype)
            p.grad = gradient.to_sparse() if info.only_supports_sparse_grads else gradient
        losses.append(step())
    return [parameters, optimizer.state_dict(), losses]


def check_optimizer(info: OptimizerInfo, limit: int) -> None:
    options = _get_optim_inputs_including_global_cliquey_kwargs("cpu", DTYPE, info, skip=())
    # Muon computes in bf16 whatever the parameters are.
    numerics = {"strict_numerics": info.optim_cls.__name__ == "Muon"}
    wrong = []
    for option in options[:: max(1, len(options) // limit)][:limit]:
        try:
            wanted, error = train(info, option.kwargs, lambda f: f), None
        except Exception as e:  # differentiable=True writes leaves
            wanted, error = [], e
        flashover.reset()
        try:
            got = train(info, option.kwargs, lambda f: flashover.compile(f, options=numerics))
        except Exception as e:
            if type(e) is not type(error):
                wrong.append(f"{option.kwargs}: {e!r}")
            continue
        if error is not None or shape_of(got) != shape_of(wanted):
            wrong.append(f"{option.kwargs}: {shape_of(got)}, eager {error or shape_of(wanted)}")
            continue
        exact = tensors_of(train(info, option.kwargs, lambda f: f, wide=True))
        exact += tensors_of(wanted)[len(exact) :]  # LBFGS may take fewer steps
        for i, (a, b, c) in enumerate(zip(tensors_of(got), tensors_of(wanted), exact, strict=False)):
            why = differs(a, b, c)
            if why:
                wrong.append(f"{option.kwargs}: tensor {i}: {why}")
                break
    assert not wrong, "\n".join(wrong[:5])


def optimizer_cases(slow: tuple[str, ...] = ()) -> list[Any]:
    names = [(i, i.optim_cls.__name__) for i in optim_db]
    return [pytest.param(i, id=n, marks=[pytest.mark.slow] if n in slow else []) for i, n in names]


@pytest.mark.parametrize("info", optimizer_cases(slow=("LBFGS", "Muon")))
def test_optimizers_as_eager(info: OptimizerInfo) -> None:
    check_optimizer(info, limit=2)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("info", optimizer_cases())
def test_optimizers_with_every_option(info: OptimizerInfo) -> None:
    check_optimizer(info, limit=1000)
