"""Real models: the replayed trace equals eager, under no_grad, inference_mode and bf16 autocast; nothing leaks."""

from __future__ import annotations

import pytest
import torch
from small_models import MODELS, MODES, call
from trace_tools import Program, same, tensors_of, trace

from flashover import _C


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, mode: str) -> None:
    torch.manual_seed(0)
    model, args = MODELS[name]()
    model.eval()
    run = call(model, mode)
    identities = {n: (id(p), p._version, p.data_ptr()) for n, p in [*model.named_parameters(), *model.named_buffers()]}
    traced = trace(Program(run, args, model))
    traced.verify()
    assert identities == {
        n: (id(p), p._version, p.data_ptr()) for n, p in [*model.named_parameters(), *model.named_buffers()]
    }
    expected = tensors_of(run(*args))
    assert not any(_C.is_trace_tensor(t) for t in expected), "a trace tensor leaked"
    with torch.no_grad():
        got = traced.run(traced.inputs)
    assert len(got) == len(expected)
    for i, (g, e) in enumerate(zip(got, expected, strict=True)):
        same(g, e, f"output {i}")
    assert not traced.python_meta_ops, sorted(set(traced.python_meta_ops))


@pytest.mark.parametrize("name", ["resnet18", "gpt2"])
def test_train_mode_forward(name: str) -> None:
    """Batch-norm statistics are written; dropout draws from torch's generator."""
    model, args = MODELS[name]()
    model.train()
    program = Program(lambda *a: model(*a), args, model)
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    traced = trace(program)
    for n, b in model.named_buffers():
        assert torch.equal(b, buffers[n]), n
    torch.manual_seed(5)
    with torch.no_grad():
        got = traced.run(traced.inputs)
    after = {n: b.clone() for n, b in model.named_buffers()}
    for n, b in model.named_buffers():
        b.copy_(buffers[n])
    torch.manual_seed(5)
    expected = tensors_of(model(*args))
    for g, e in zip(got, expected, strict=True):
        same(g, e, "output")
    for n, b in model.named_buffers():
        assert torch.equal(b, after[n]), n
