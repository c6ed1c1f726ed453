"""Models by name, random weights, nothing downloaded: the list of the benchmarks and of the end-to-end tests.

`make(name, small=False)` returns `(model.eval(), args, kwargs)`. `small` shrinks resolution, depth and width for CI;
the
architecture stays the real one. Weights and inputs are seeded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Example = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]

# Batch 2 at 224 (benchmark) or batch 1 at 64..224 (small): enough work to be real, little enough for two cores.
TIMM_SMALL: dict[str, dict[str, Any]] = {
    "vit_base_patch16_224": {"img_size": 64, "embed_dim": 96, "depth": 3, "num_heads": 3},
    "swin_tiny_patch4_window7_224": {"embed_dim": 48, "depths": (2, 2, 2, 2), "num_heads": (2, 4, 8, 16)},
    "mixer_b16_224": {"img_size": 64},
    "convnext_tiny": {"depths": (1, 1, 2, 1), "dims": (32, 64, 96, 128)},
}


def _timm(name: str, small: bool) -> Example:
    import timm

    kwargs = TIMM_SMALL.get(name, {}) if small else {}
    model = timm.create_model(name, pretrained=False, **kwargs)
    side = 64 if small and "swin" not in name else 224
    return model, (torch.randn(1 if small else 2, 3, side, side),), {}


def _torchvision(name: str, small: bool) -> Example:
    import torchvision

    side = 64 if small else 224
    return torchvision.models.get_model(name, weights=None), (torch.randn(1 if small else 2, 3, side, side),), {}


def _text(config_name: str, model_name: str, full: dict[str, Any], tiny: dict[str, Any]) -> Callable[[bool], Example]:
    def build(small: bool) -> Example:
        import transformers

        config = getattr(transformers, config_name)(**(full | tiny if small else full))
        model = getattr(transformers, model_name)(config)
        vocab = config.vocab_size
        ids = torch.randint(0, vocab, (1, 16) if small else (2, 128))
        kwargs: dict[str, Any] = {"input_ids": ids}
        if config.is_encoder_decoder:
            kwargs["decoder_input_ids"] = torch.randint(0, vocab, (1, 8) if small else (2, 64))
        return model, (), kwargs

    return build


_BERT = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048}
_BERT_TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 500,
}
_GPT_TINY = {"n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 500}
_LLAMA = {
    "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 1376, "vocab_size": 8000,
}  # fmt: skip
_LLAMA_TINY = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 160, "vocab_size": 500,
}  # fmt: skip

TEXT: dict[str, Callable[[bool], Example]] = {
    "bert": _text("BertConfig", "BertModel", _BERT, _BERT_TINY),
    "distilbert": _text(
        "DistilBertConfig", "DistilBertModel",
        {"dim": 512, "n_layers": 4, "n_heads": 8, "hidden_dim": 2048},
        {"dim": 64, "n_layers": 2, "n_heads": 2, "hidden_dim": 128, "vocab_size": 500},
    ),
    "gpt2": _text("GPT2Config", "GPT2LMHeadModel", {"n_embd": 512, "n_layer": 4, "n_head": 8, "vocab_size": 8000}, _GPT_TINY),
    "opt": _text(
        "OPTConfig", "OPTForCausalLM",
        {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "ffn_dim": 2048, "vocab_size": 8000,
         "word_embed_proj_dim": 512},
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 128, "vocab_size": 500,
         "word_embed_proj_dim": 64},
    ),
    "t5": _text(
        "T5Config", "T5ForConditionalGeneration",
        {"d_model": 256, "d_kv": 32, "d_ff": 1024, "num_layers": 4, "num_heads": 8, "vocab_size": 8000, "decoder_start_token_id": 0},
        {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 500},
    ),
    "llama": _text("LlamaConfig", "LlamaForCausalLM", _LLAMA, _LLAMA_TINY),
    "qwen2": _text("Qwen2Config", "Qwen2ForCausalLM", _LLAMA, _LLAMA_TINY),
}  # fmt: skip

TIMM = [
    "resnet18", "resnet50", "mobilenetv3_large_100", "efficientnet_b0", "convnext_tiny", "vit_base_patch16_224",
    "swin_tiny_patch4_window7_224", "mixer_b16_224",
]  # fmt: skip
TORCHVISION = ["shufflenet_v2_x1_0"]
ALL = [*TIMM, *TORCHVISION, *TEXT]


def make(name: str, small: bool = False) -> Example:
    """Builds a model of the list; any other name is asked of timm, then of torchvision."""
    torch.manual_seed(0)
    if name in TEXT:
        model, args, kwargs = TEXT[name](small)
    elif name in TORCHVISION:
        model, args, kwargs = _torchvision(name, small)
    else:
        model, args, kwargs = _timm(name, small)
    # A head of zeros makes every result zero, and any compiler right.
    for p in model.parameters():
        if p.dim() > 1 and not p.any():
            torch.nn.init.normal_(p, std=0.02)
    return model.eval(), args, kwargs
