"""Real models: the replayed trace equals eager, under no_grad, inference_mode and bf16 autocast; nothing leaks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from trace_tools import Program, same, tensors_of, trace

from flashover import _C


def timm_model(name: str, size: int) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    import timm

    return timm.create_model(name, pretrained=False), (torch.randn(1, 3, size, size),)


def hf(config_class: str, model_class: str, **sizes: Any) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    import transformers

    config = getattr(transformers, config_class)(**sizes)
    model = getattr(transformers, model_class)(config)
    return model, (torch.randint(0, 100, (2, 9)),)


MODELS: dict[str, Callable[[], tuple[torch.nn.Module, tuple[Any, ...]]]] = {
    "resnet18": lambda: timm_model("resnet18", 64),
    "mobilenetv3": lambda: timm_model("mobilenetv3_large_100", 64),
    "vit_tiny": lambda: timm_model("vit_tiny_patch16_224", 224),
    "convnext": lambda: timm_model("convnext_atto", 64),
    "swin": lambda: timm_model("swin_tiny_patch4_window7_224", 224),
    "bert": lambda: hf(
        "BertConfig",
        "BertModel",
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        vocab_size=100,
    ),
    "gpt2": lambda: hf("GPT2Config", "GPT2LMHeadModel", n_embd=64, n_layer=2, n_head=4, vocab_size=100),
    "llama": lambda: hf(
        "LlamaConfig",
        "LlamaForCausalLM",
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        vocab_size=100,
    ),
    "t5": lambda: hf(
        "T5Config", "T5EncoderModel", d_model=64, num_layers=2, num_heads=4, d_kv=16, d_ff=128, vocab_size=100
    ),
}
MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: contextlib.ExitStack(),
}


def call(model: torch.nn.Module, mode: str) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        if mode != "autocast":
            with MODES[mode]():
                return model(*args)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return model(*args)

    return run


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
