"""Small real models, and the modes that they are called in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch


def timm_model(name: str, size: int, **changes: Any) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    import timm

    return timm.create_model(name, pretrained=False, **changes), (torch.randn(1, 3, size, size),)


def hf(config_class: str, model_class: str, **sizes: Any) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    import transformers

    config = getattr(transformers, config_class)(**sizes)
    model = getattr(transformers, model_class)(config)
    return model, (torch.randint(0, 100, (2, 9)),)


MODELS: dict[str, Callable[[], tuple[torch.nn.Module, tuple[Any, ...]]]] = {
    "resnet18": lambda: timm_model("resnet18", 64),
    "mobilenetv3": lambda: timm_model("mobilenetv3_large_100", 64),
    "vit_tiny": lambda: timm_model("vit_tiny_patch16_224", 112, img_size=112, depth=6),
    "convnext": lambda: timm_model("convnext_atto", 64),
    "swin": lambda: timm_model("swin_tiny_patch4_window7_224", 224, depths=(2, 1, 2, 1), embed_dim=48),
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


class PartlyPrepared(torch.nn.Module):
    """One kernel makes both sums: what follows from one is kept, from the other laid out by the image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.table = torch.nn.Parameter(torch.randn(16, 3, 3, 3)), torch.nn.Parameter(torch.randn(3, 64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        one, other = self.weight.sum((0, 2, 3)), (self.weight * self.weight).sum((0, 2, 3))
        y = torch.nn.functional.conv2d(x, self.weight / other.view(1, 3, 1, 1))
        return y, x.mean((0, 2, 3)).view(3, 1) * (self.table * one.view(3, 1))
