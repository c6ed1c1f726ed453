"""Architectures by name for the capture sweep: one small model of every timm module, torchvision, and every base class of
transformers, built offline with random weights at the smallest sizes that work.

`cases()` lists (kind, name); `make(kind, name)` returns (model.eval(), args, kwargs) or raises with the reason.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch

Case = tuple[str, str]

# Words in timm names, smallest first: of a module's models the first by these is taken.
SIZES = [
    "test",
    "atto",
    "femto",
    "pico",
    "zepto",
    "nano",
    "xxxs",
    "xxs",
    "xxtiny",
    "xtiny",
    "tiny",
    "_ti",
    "_t_",
    "xs",
    "_t0",
    "_xt",
    "_s0",
    "_b0",
    "_m0",
    "_0",
    "small",
    "_s",
    "002",
    "10ts",
    "14",
    "18",
    "26",
]
TIMM_NAMES = {  # where the rule above picks something large or special
    "byoanet": "bat_resnext26ts", "byobnet": "repvgg_a0", "cspnet": "cspresnet50", "densenet": "densenet121", "dla": "dla34", "dpn": "dpn48b",
    "efficientnet": "efficientnet_b0", "eva": "eva02_tiny_patch14_224", "ghostnet": "ghostnet_050", "hrnet": "hrnet_w18_small", "maxxvit": "maxvit_tiny_rw_224",
    "metaformer": "poolformer_s12", "mlp_mixer": "mixer_s32_224", "nfnet": "dm_nfnet_f0", "regnet": "regnetx_002", "resnet": "resnet18", "resnetv2": "resnetv2_50",
    "senet": "legacy_seresnet18", "vgg": "vgg11", "vision_transformer": "vit_tiny_patch16_224", "vovnet": "ese_vovnet19b_dw", "xcit": "xcit_nano_12_p16_224",
    "levit": "levit_128s", "xception_aligned": "xception41", "mobilenetv3": "mobilenetv3_small_050", "res2net": "res2net50_26w_4s", "vision_transformer_hybrid": "vit_tiny_r_s16_p8_224",
    "gcvit": "gcvit_xxtiny", "davit": "davit_tiny", "rexnet": "rexnet_100", "nasnet": "nasnetalarge", "swin_transformer_v2_cr": "swinv2_cr_tiny_ns_224",
}  # fmt: skip
# Second members of large modules, whose blocks differ.
TIMM_MORE = [
    "seresnet18",
    "ecaresnet26t",
    "resnext50_32x4d",
    "regnety_002",
    "mobilenetv2_100",
    "mobilenetv4_conv_small",
    "mixnet_s",
    "tinynet_e",
    "mnasnet_small",
    "fbnetc_100",
    "efficientnetv2_rw_t",
    "convnextv2_atto",
    "cspdarknet53",
    "darknet53",
    "eca_nfnet_l0",
    "gernet_s",
    "resmlp_12_224",
    "gmixer_12_224",
    "gmlp_ti16_224",
    "deit3_small_patch16_224",
    "coat_lite_tiny",
    "swin_s3_tiny_224",
    "twins_svt_small",
    "mobilevitv2_050",
    "caformer_s18",
    "convformer_s18",
    "lambda_resnet26t",
    "botnet26t_256",
    "halonet26t",
    "mobileone_s0",
    "coatnet_nano_rw_224",
    "hgnetv2_b0",
    "ghostnetv2_100",
    "ghostnetv3_050",
    "vit_relpos_small_patch16_224",
    "vit_srelpos_small_patch16_224",
    "flexivit_small",
    "lcnet_050",
    "hardcorenas_b",
    "skresnext50_32x4d",
    "resnetaa50",
    "eca_botnext26ts_256",
    "gcresnet33ts",
    "fastvit_sa12",
    "crossvit_9_240",
    "vit_small_patch16_36x1_224",
    "vit_base_patch16_rope_mixed_224",
    "vit_small_patch16_dinov3",
    "beitv2_base_patch16_224",
    "xcit_tiny_12_p8_224",
    "davit_tiny",
    "inception_resnet_v2",
    "pnasnet5large",
]
TORCHVISION = [
    "alexnet",
    "squeezenet1_1",
    "googlenet",
    "mnasnet0_5",
    "shufflenet_v2_x0_5",
    "vit_b_32",
    "swin_v2_t",
    "swin_t",
    "maxvit_t",
    "regnet_y_400mf",
    "efficientnet_v2_s",
    "convnext_tiny",
    "densenet121",
    "vgg11_bn",
    "mobilenet_v3_small",
    "resnext50_32x4d",
    "wide_resnet50_2",
    "inception_v3",
    "fcn_resnet50",
    "deeplabv3_mobilenet_v3_large",
    "lraspp_mobilenet_v3_large",
    "raft_small",
    "r3d_18",
    "mc3_18",
    "r2plus1d_18",
    "s3d",
    "mvit_v1_b",
    "swin3d_t",
    "ssdlite320_mobilenet_v3_large",
    "retinanet_resnet50_fpn",
    "fasterrcnn_mobilenet_v3_large_320_fpn",
    "fcos_resnet50_fpn",
    "keypointrcnn_resnet50_fpn",
    "maskrcnn_resnet50_fpn",
]
VIDEO = {"r3d_18", "mc3_18", "r2plus1d_18", "s3d", "mvit_v1_b", "swin3d_t"}

# Every attribute a transformers config may have that makes it big -> a small value. Applied where present.
SHRINK: dict[str, Any] = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32, "emb_dim": 32, "encoder_hidden_size": 32, "decoder_hidden_size": 32,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2, "num_encoder_layers": 2, "num_decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "d_ff": 48, "ffn_dim": 48, "hidden_dim": 48, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "n_inner": 48, "moe_intermediate_size": 24,
    "vocab_size": 120, "max_position_embeddings": 64, "n_positions": 64, "head_dim": 8, "d_kv": 8, "embedding_size": 32, "word_embed_proj_dim": 32,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "image_size": 32, "patch_size": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0, "sliding_window": 16, "projection_dim": 32,
}  # fmt: skip
DEPTH = {k: v for k, v in SHRINK.items() if "layer" in k} | {
    k: SHRINK[k] for k in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")
}


def timm_families() -> dict[str, str]:
    import timm
    from timm.models._registry import _model_to_module

    modules: dict[str, list[str]] = {}
    listed = set(timm.list_models())
    for name, module in _model_to_module.items():
        if name in listed:
            modules.setdefault(module, []).append(name)

    def size(name: str) -> tuple[int, int, str]:
        at = [i for i, word in enumerate(SIZES) if word in name]
        return (min(at, default=len(SIZES)), len(name), name)

    return {
        m: TIMM_NAMES[m] if TIMM_NAMES.get(m) in names else min(names, key=size) for m, names in sorted(modules.items())
    }


def cases() -> list[Case]:
    import timm
    from transformers.models.auto import modeling_auto

    families = timm_families()
    known = set(timm.list_models())
    names = dict.fromkeys([*families.values(), *(n for n in TIMM_MORE if n in known)])
    kinds = [k for k, v in modeling_auto.MODEL_MAPPING_NAMES.items()]
    heads = [f"{k}:CausalLM" for k in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]
    return (
        [("timm", n) for n in names]
        + [("torchvision", n) for n in TORCHVISION]
        + [("transformers", k) for k in kinds + heads]
    )


def timm_model(name: str) -> Any:
    import timm

    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    channels, own, _ = config.input_size if config else (3, 224, 224)
    fixed = bool(config and config.fixed_input_size)
    fail: Exception | None = None
    for side in dict.fromkeys([own] if fixed else [min(own, 64), min(own, 96), 128, 160, 224, own]):
        for kwargs in ({"img_size": 64, "num_classes": 10}, {"num_classes": 10}) if fixed else ({"num_classes": 10},):
            try:
                model = timm.create_model(name, pretrained=False, **kwargs).eval()
                x = torch.randn(1, channels, kwargs.get("img_size", side), kwargs.get("img_size", side))
                model(x)
                return model, (x,), {}
            except Exception as failure:
                fail = failure
    raise fail or RuntimeError("no input size")


def torchvision_model(name: str) -> Any:
    import torchvision

    kwargs: dict[str, Any] = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    if any(word in name for word in ("rcnn", "fcn", "deeplab", "lraspp", "ssd", "retina", "fcos")):
        kwargs["weights_backbone"] = None
    model = torchvision.models.get_model(name, weights=None, **kwargs).eval()
    if name == "raft_small":
        return model, (torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128)), {"num_flow_updates": 2}
    if name in VIDEO:
        side = 224 if name in ("mvit_v1_b", "s3d") else 64
        return model, (torch.randn(1, 3, 16, side, side),), {}
    if "rcnn" in name or "ssd" in name or "retina" in name or "fcos" in name:
        return model, ([torch.rand(3, 96, 96)],), {}
    side = 224 if name in ("vit_b_32", "maxvit_t") else 96
    return model, (torch.randn(1, 3, side, side),), {}


def shrink(config: Any, table: dict[str, Any]) -> None:
    for key, value in table.items():
        old = getattr(config, key, None)
        if isinstance(old, int) and not isinstance(old, bool) and old > 0:
            with contextlib.suppress(Exception):
                setattr(config, key, value)
    for key, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and key != "self":
            shrink(value, table)


def small_configs(kind: str) -> Any:
    """Ways to make a small configuration, most thorough first."""
    import transformers

    def all_by_kwargs() -> Any:
        config = transformers.AutoConfig.for_model(kind)
        own = {
            k: v
            for k, v in SHRINK.items()
            if isinstance(getattr(config, k, None), int) and not isinstance(getattr(config, k), bool)
        }
        config = type(config)(**own)
        for value in vars(config).values():
            if hasattr(value, "to_dict"):
                shrink(value, SHRINK)
        return config

    def all_by_attributes() -> Any:
        config = transformers.AutoConfig.for_model(kind)
        shrink(config, SHRINK)
        return config

    def lists() -> Any:
        config = all_by_attributes()
        depth = getattr(config, "num_hidden_layers", 2)
        for key, value in list(vars(config).items()):
            if isinstance(value, list) and len(value) > 4 and ("layer" in key or "type" in key):
                with contextlib.suppress(Exception):
                    setattr(config, key, value[:depth])
        return config

    def depth() -> Any:
        config = transformers.AutoConfig.for_model(kind)
        shrink(config, DEPTH)
        return config

    return [all_by_kwargs, all_by_attributes, lists, depth, lambda: transformers.AutoConfig.for_model(kind)]


def transformers_model(name: str) -> Any:
    import transformers

    kind, _, head = name.partition(":")
    auto = getattr(transformers, "AutoModelFor" + head) if head else transformers.AutoModel
    first: Exception | None = None
    for make_config in small_configs(kind):
        try:
            config = make_config()
            with torch.device("meta"):
                size = sum(p.numel() for p in auto.from_config(config).parameters())
            if size > 120e6:
                raise RuntimeError(f"{size / 1e6:.0f} million parameters at the smallest")
            torch.manual_seed(0)
            model = auto.from_config(config).eval().float()
        except Exception as failure:
            first = first or failure
            continue
        for kwargs in inputs(model, config, kind):
            try:
                model(**kwargs)
                return model, (), kwargs
            except Exception as failure:
                first = failure
    raise first or RuntimeError("no configuration")


def inputs(model: Any, config: Any, kind: str) -> Any:
    names = inspect.signature(model.forward).parameters
    vocab = min(
        [v for c in [config, *vars(config).values()] if isinstance(v := getattr(c, "vocab_size", None), int) and v > 10]
        + [100]
    )
    high = max(vocab - 4, 5)
    base: dict[str, Any] = {}
    if "input_ids" in names:
        base["input_ids"] = torch.randint(3, high, (1, 16))
    if "decoder_input_ids" in names and (
        getattr(config, "is_encoder_decoder", False) or names["decoder_input_ids"].default is inspect.Parameter.empty
    ):
        base["decoder_input_ids"] = torch.randint(3, high, (1, 8))
    vision = next(
        (c for n in ("vision_config", "backbone_config") if (c := getattr(config, n, None)) is not None), config
    )
    size = getattr(vision, "image_size", None) or getattr(config, "image_size", None) or 64
    size = size if isinstance(size, int) else size[0] if isinstance(size, (list, tuple)) else 64
    channels = getattr(vision, "num_channels", getattr(vision, "in_channels", 3)) or 3
    frames = getattr(config, "num_frames", None)
    sides = dict.fromkeys([size, max(size, 64), 224])
    pixels = "pixel_values" in names
    audio = (
        getattr(config, "num_mel_bins", None)
        or getattr(getattr(config, "audio_config", None), "num_mel_bins", None)
        or 80
    )
    sounds: list[dict[str, Any]] = [{}]
    if "input_values" in names:
        sounds = [{"input_values": torch.randn(1, 4000)}, {"input_values": torch.randn(1, 1, 4000)},
                  {"input_values": torch.randn(1, 1024, 128)}, {"input_values": torch.randn(1, 50, audio)}]  # fmt: skip
    if "input_features" in names:
        sounds = [{"input_features": torch.randn(1, audio, 3000)}, {"input_features": torch.randn(1, audio, 100)}, {"input_features": torch.randn(1, 100, audio)},
                  {"input_features": torch.randn(1, 1, 1001, 64), "is_longer": torch.tensor([[False]])}]  # fmt: skip
    for sound in sounds:
        if not pixels:
            yield base | sound
            continue
        for side in sides:
            yield base | sound | {"pixel_values": torch.randn(1, channels, side, side)}
        if frames:
            yield base | sound | {"pixel_values": torch.randn(1, frames, channels, size, size)}
        if base and all(p.default is not inspect.Parameter.empty for n, p in names.items() if n == "pixel_values"):
            yield base | sound
    if "pixel_values_videos" in names:
        yield base | {"pixel_values_videos": torch.randn(1, getattr(config, "frames_per_clip", 4), 3, size, size)}


def make(kind: str, name: str) -> Any:
    torch.manual_seed(0)
    return {"timm": timm_model, "torchvision": torchvision_model, "transformers": transformers_model}[kind](name)
