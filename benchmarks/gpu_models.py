"""The models of benchmarks/gpu.py: real architectures, random weights, batch sizes that fill the GPU.

`make(name, training, small)` -> (model, call): call(model) is the forward, and gives the loss where `training`.
small: a few kilobytes of each, to try the script itself on any machine."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Inputs = dict[str, Any]
Made = tuple[nn.Module, Inputs]
Builder = Callable[[bool, bool], Made]  # (training, small)


def image_model(name: str, batch: int, train_batch: int = 0, **small_sizes: Any) -> Builder:
    def build(training: bool, small: bool) -> Made:
        import timm

        sizes = small_sizes if small else {}
        side = 64 if small else 224
        n = 2 if small else (train_batch or batch) if training else batch
        return timm.create_model(name, pretrained=False, **sizes), {"x": torch.randn(n, 3, side, side)}

    return build


def timm_model(name: str) -> Builder:
    """Of any name: in the size that it wants, 32 images."""

    def build(training: bool, small: bool) -> Made:
        import timm

        model = timm.create_model(name, pretrained=False, num_classes=1000)
        return model, {"x": torch.randn(2 if small else 32, *model.default_cfg["input_size"])}

    return build


TINY = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 128,
    "vocab_size": 512, "n_embd": 64, "n_layer": 2, "n_head": 2, "dim": 64, "n_layers": 2, "n_heads": 2, "hidden_dim": 128,
    "d_model": 64, "d_kv": 32, "d_ff": 128, "num_layers": 2, "num_heads": 2, "ffn_dim": 128, "word_embed_proj_dim": 64,
    "embedding_size": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2,
}  # fmt: skip
DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout",
    "attention_dropout", "dropout_rate", "activation_dropout", "classifier_dropout_prob",
)  # fmt: skip


def text_model(config: str, model: str, batch: int, length: int, **sizes: Any) -> Builder:
    def build(training: bool, small: bool) -> Made:
        import transformers

        kind = getattr(transformers, config)
        default = kind()
        shrunk = {k: v for k, v in TINY.items() if hasattr(default, k)} if small else {}
        # Gradients are compared with a reference, which random zeros do not allow.
        c = kind(**{**sizes, **shrunk, **{k: 0.0 for k in DROPOUTS if hasattr(default, k)}})
        n, long = (2, 16) if small else (batch, length)
        ids = torch.randint(3, c.vocab_size, (n, long))
        inputs: Inputs = {"input_ids": ids}
        if c.is_encoder_decoder:
            inputs["decoder_input_ids"] = torch.randint(3, c.vocab_size, (n, long // 2))
        if training or hasattr(default, "use_cache"):
            inputs["use_cache"] = False
        if "ForMaskedLM" in model:
            inputs.pop("use_cache", None)
        if training:
            inputs["labels"] = inputs.get("decoder_input_ids", ids).clone()
        return getattr(transformers, model)(c), inputs

    return build


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.linear(self.norm(x)))


def blocks(training: bool, small: bool) -> Made:
    return nn.Sequential(*[Block(64) for _ in range(4 if small else 50)]), {"input": torch.randn(32, 64)}


class Double(nn.Sequential):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(
            nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
            nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True),
        )  # fmt: skip


class UNet(nn.Module):
    """Ronneberger's, as usually written today."""

    def __init__(self, base: int, classes: int = 2) -> None:
        super().__init__()
        widths = [base * 2**i for i in range(5)]
        self.inside = Double(3, base)
        self.down = nn.ModuleList(Double(a, b) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in itertools.pairwise(widths))
        self.join = nn.ModuleList(Double(2 * a, a) for a in widths[:-1])
        self.out = nn.Conv2d(base, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = [self.inside(x)]
        for d in self.down:
            levels.append(d(F.max_pool2d(levels[-1], 2)))
        x = levels.pop()
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            x = join(torch.cat([levels.pop(), up(x)], 1))
        return self.out(x)


def unet(training: bool, small: bool) -> Made:
    side, base, n = (32, 8, 2) if small else (256, 64, 16)
    return UNet(base), {"x": torch.randn(n, 3, side, side)}


class DLRM(nn.Module):
    """Naumov et al.: dense and categorical features, dot interaction, a multilayer perceptron."""

    def __init__(self, rows: int, tables: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU()
        )
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
            nn.Linear(256, 1),
        )  # fmt: skip
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        rows = torch.stack([x, *(t(sparse[:, i]) for i, t in enumerate(self.tables))], 1)
        dots = torch.bmm(rows, rows.transpose(1, 2))
        return self.top(torch.cat([x, dots[:, self.pairs[0], self.pairs[1]].to(x.dtype)], 1)).squeeze(1)


def dlrm(training: bool, small: bool) -> Made:
    rows, tables, width, n = (50, 4, 16, 8) if small else (100_000, 26, 64, 2048)
    return DLRM(rows, tables, width), {"dense": torch.randn(n, 13), "sparse": torch.randint(0, rows, (n, tables))}


LLAMA = {"hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 16,
         "intermediate_size": 2816, "vocab_size": 32000}  # fmt: skip
QWEN = {**LLAMA, "num_key_value_heads": 4, "vocab_size": 50000}

MODELS: dict[str, Builder] = {
    "blocks50": blocks,
    "resnet50": image_model("resnet50", 64, 32),
    "bert": text_model("BertConfig", "BertForMaskedLM", 16, 512),
    "gpt2": text_model("GPT2Config", "GPT2LMHeadModel", 8, 512),
    "vit_base": image_model("vit_base_patch16_224", 64, 64, img_size=64, embed_dim=96, depth=2, num_heads=3),
    "llama": text_model("LlamaConfig", "LlamaForCausalLM", 12, 1024, **LLAMA),
    "convnext_tiny": image_model("convnext_tiny", 64, 32, depths=(1, 1, 1, 1), dims=(32, 64, 96, 128)),
    "t5": text_model("T5Config", "T5ForConditionalGeneration", 16, 256, decoder_start_token_id=0),
    "albert": text_model(
        "AlbertConfig", "AlbertForMaskedLM", 16, 512,
        hidden_size=768, num_attention_heads=12, intermediate_size=3072,
    ),
    "unet": unet,
    "dlrm": dlrm,
    # Ten more.
    "efficientnet_b0": image_model("efficientnet_b0", 128, 64),
    "mixer": image_model("mixer_b16_224", 64, 64, img_size=64),
    "distilbert": text_model("DistilBertConfig", "DistilBertForMaskedLM", 16, 512),
    "swin_tiny": image_model("swin_tiny_patch4_window7_224", 64, 32, img_size=64, embed_dim=48, depths=(1, 1, 1, 1), num_heads=(2, 4, 8, 16), window_size=4),
    "opt": text_model("OPTConfig", "OPTForCausalLM", 8, 512),
    "qwen2": text_model("Qwen2Config", "Qwen2ForCausalLM", 8, 1024, **QWEN),
    "mobilenetv3": image_model("mobilenetv3_large_100", 128, 128),
    "densenet121": image_model("densenet121", 64, 32),
    "regnety": image_model("regnety_032", 64, 32),
    "bart": text_model("BartConfig", "BartForConditionalGeneration", 8, 512, encoder_layers=6, decoder_layers=6, d_model=768, encoder_ffn_dim=3072, decoder_ffn_dim=3072, encoder_attention_heads=12, decoder_attention_heads=12),
    # Latency.
    "bert_1": text_model("BertConfig", "BertForMaskedLM", 1, 128),
    "resnet50_1": image_model("resnet50", 1, 1),
}  # fmt: skip
# The list of the issue first, so that a limit cuts the rest.
INFERENCE = list(MODELS)
# `--models others`: architectures that nobody tuned anything for; any other of timm by its name after timm/.
OTHER_IMAGES = (
    "beit_base_patch16_224", "coatnet_0_rw_224", "vgg16", "resnet18", "poolformer_s12", "levit_256", "res2net50_26w_4s",
    "maxvit_tiny_rw_224", "mobilevit_s", "edgenext_small", "xcit_small_12_p16_224", "pvt_v2_b1", "twins_svt_small",
    "resnext50_32x4d", "seresnet50", "inception_v3", "ghostnet_100", "hrnet_w18", "volo_d1_224", "focalnet_tiny_srf",
    "resmlp_12_224", "eva02_tiny_patch14_224", "repvgg_a2", "convmixer_768_32",
)  # fmt: skip
MODELS |= {
    "roberta": text_model("RobertaConfig", "RobertaForMaskedLM", 16, 512, max_position_embeddings=514),
    "gpt_neox": text_model("GPTNeoXConfig", "GPTNeoXForCausalLM", 8, 512, hidden_size=1024, num_hidden_layers=12, num_attention_heads=16, intermediate_size=4096),
    "electra": text_model("ElectraConfig", "ElectraForMaskedLM", 16, 512),
    "deberta_v2": text_model("DebertaV2Config", "DebertaV2ForMaskedLM", 8, 256, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=256, share_att_key=True),
    "bloom": text_model("BloomConfig", "BloomForCausalLM", 8, 512, hidden_size=1024, n_layer=12, n_head=16),
    "phi": text_model("PhiConfig", "PhiForCausalLM", 8, 512, hidden_size=1024, num_hidden_layers=12, num_attention_heads=16, intermediate_size=4096),
    "gemma2": text_model("Gemma2Config", "Gemma2ForCausalLM", 4, 512, **{**LLAMA, "num_key_value_heads": 4, "head_dim": 64}),
    "mixtral": text_model("MixtralConfig", "MixtralForCausalLM", 4, 512, **{**LLAMA, "num_hidden_layers": 6, "num_key_value_heads": 4}),
    "mobilebert": text_model("MobileBertConfig", "MobileBertForMaskedLM", 16, 256),
    "mamba": text_model("MambaConfig", "MambaForCausalLM", 4, 256, hidden_size=512, num_hidden_layers=8),
    "pegasus": text_model("PegasusConfig", "PegasusForConditionalGeneration", 8, 256, encoder_layers=6, decoder_layers=6, d_model=768, encoder_ffn_dim=3072, decoder_ffn_dim=3072, encoder_attention_heads=12, decoder_attention_heads=12),
}  # fmt: skip
OTHERS = [*(f"timm/{name}" for name in OTHER_IMAGES), *list(MODELS)[len(INFERENCE) :]]
TRAINING = ["resnet50", "bert", "gpt2", "vit_base", "convnext_tiny", "llama", "t5", "albert", "unet", "dlrm", "blocks50",
            "efficientnet_b0", "distilbert", "qwen2", "mixer"]  # fmt: skip


def loss_of(out: Any) -> torch.Tensor:
    """What a training step goes down: the model's own loss, else the mean square of its result."""
    loss = getattr(out, "loss", None)
    return loss if loss is not None else out.float().pow(2).mean()


def make(name: str, training: bool, small: bool) -> tuple[nn.Module, Inputs]:
    torch.manual_seed(0)
    build = timm_model(name.removeprefix("timm/")) if name.startswith("timm/") else MODELS[name]
    model, inputs = build(training, small)
    return model.train(training), inputs


def optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """In eager, as users have it: SGD for convolutions, AdamW for the rest."""
    if any(isinstance(m, nn.Conv2d) for m in model.modules()) and not name.startswith(
        ("vit", "swin", "mixer", "convnext")
    ):
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=1e-5)
