"""Capture sweep: does every architecture compile whole and give eager's results? Smallest sensible sizes, random weights, CPU.

    python benchmarks/sweep.py                      # everything; one line a model, a summary at the end
    python benchmarks/sweep.py --only vit,bert      # names that contain one of these
    python benchmarks/sweep.py --json sweep.json --inductor   # the same for torch.compile beside it
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
import models as bench  # noqa: E402

# One small member of each timm family: name -> input side (0: the model's own default).
TIMM = """resnet18 resnetv2_50 resnext50_32x4d seresnet18:64 ecaresnet26t:64 skresnet18 regnetx_002 regnety_002 densenet121 dla34 dpn68 vgg11_bn
mobilenetv2_100 mobilenetv3_small_050 mobilenetv4_conv_small efficientnet_b0 efficientnetv2_rw_t mixnet_s mnasnet_small spnasnet_100 ghostnet_100 ghostnetv2_100
tinynet_e hardcorenas_a lcnet_050 fbnetc_100 repvgg_a0 rexnet_100 res2net50_26w_4s hrnet_w18_small inception_v3:96 inception_v4:96 xception41
convnext_atto convnextv2_atto convmixer_768_32:64 cspresnet50 cspdarknet53 darknet53 nfnet_f0:96 dm_nfnet_f0:96 eca_nfnet_l0:96 gernet_s selecsls42
resmlp_12_224:224 mixer_s32_224:224 gmixer_12_224:224 gmlp_ti16_224:224 vit_tiny_patch16_224:224 deit_tiny_patch16_224:224 deit3_small_patch16_224:224
beit_base_patch16_224:224 beitv2_base_patch16_224:224 eva02_tiny_patch14_224:224 cait_xxs24_224:224 crossvit_tiny_240:240 convit_tiny:224 coat_tiny:224 coat_lite_tiny:224
swin_tiny_patch4_window7_224:224 swinv2_cr_tiny_224:224 swinv2_tiny_window8_256:256 swin_s3_tiny_224:224 twins_pcpvt_small:224 twins_svt_small:224 visformer_tiny:224
pit_ti_224:224 tnt_s_legacy_patch16_224:224 levit_128s:224 mobilevit_xxs:256 mobilevitv2_050:256 poolformer_s12:224 pvt_v2_b0:224 xcit_nano_12_p16_224:224 volo_d1_224:224
sequencer2d_s:224 edgenext_xx_small:256 efficientformer_l1:224 efficientformerv2_s0:224 fastvit_t8:256 repvit_m0_9:224 mvitv2_tiny:224 maxvit_tiny_rw_224:224 coatnet_nano_rw_224:224
gcvit_xxtiny:224 davit_tiny:224 focalnet_tiny_srf:224 hiera_tiny_224:224 inception_next_tiny:224 metaformer:224 caformer_s18:224 convformer_s18:224 tiny_vit_5m_224:224 nest_tiny:224
hgnet_tiny hgnetv2_b0 starnet_s1 shvit_s1 swiftformer_xs:224 mambaout_femto rdnet_tiny vovnet39a ese_vovnet19b_dw efficientvit_b0:224 efficientvit_m0:224 tresnet_m:64 vitamin_small_224:224
samvit_base_patch16_224:224 bat_resnext26ts:256 lambda_resnet26t:256 botnet26t_256:256 halonet26t:256 resnest14d ghostnetv3_050 csatv2:512 mobilenetv5_base:256 naflexvit_base_patch16_gap:224"""
TORCHVISION = "alexnet squeezenet1_1 googlenet mnasnet0_5 shufflenet_v2_x0_5 vit_b_32:224 swin_v2_t maxvit_t:224 regnet_y_400mf efficientnet_v2_s convnext_tiny"

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
TEXT = """bert roberta distilbert albert electra camembert xlm-roberta deberta deberta-v2 mpnet mobilebert squeezebert funnel ernie nezha convbert roformer megatron-bert
big_bird longformer layoutlm fnet ibert data2vec-text splinter rembert canine xlnet xlm flaubert gpt2 gpt_neo gpt_neox gptj opt bloom falcon mpt codegen ctrl openai-gpt biogpt xglm
gpt_bigcode llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3_text phi phi3 stablelm starcoder2 olmo olmo2 cohere cohere2 granite persimmon nemotron glm glm4
deepseek_v2 deepseek_v3 jamba mamba mamba2 rwkv recurrent_gemma helium smollm3 exaone4 ernie4_5 minimax gpt_oss granitemoe olmoe phimoe dbrx jetmoe bamba falcon_mamba zamba bitnet arcee
t5 mt5 umt5 bart mbart pegasus blenderbot blenderbot-small marian led longt5 prophetnet m2m_100 plbart switch_transformers bigbird_pegasus nllb-moe pegasus_x
vit deit beit swin swinv2 convnext convnextv2 resnet regnet mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 poolformer pvt pvt_v2 segformer levit cvt dinov2 vit_mae vit_msn efficientnet
focalnet bit hiera ijepa dpt glpn yolos vivit timesformer videomae swiftformer data2vec-vision imagegpt
wav2vec2 hubert wavlm sew unispeech audio-spectrogram-transformer whisper speech_to_text clip siglip blip-2 align groupvit git vilt bridgetower flava owlvit clipseg x-clip chinese_clip""".split()


class Timeout(Exception):
    pass


@contextlib.contextmanager
def limit(seconds: int) -> Iterator[None]:
    def raise_timeout(*_: Any) -> None:
        raise Timeout(f"over {seconds} s")

    old = signal.signal(signal.SIGALRM, raise_timeout)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


def timm_model(spec: str) -> Any:
    import timm

    name, _, side = spec.partition(":")
    side_px = int(side or 64)
    return timm.create_model(name, pretrained=False).eval(), (torch.randn(1, 3, side_px, side_px),), {}


def torchvision_model(spec: str) -> Any:
    import torchvision

    name, _, side = spec.partition(":")
    side_px = int(side or 96)
    kwargs = {"init_weights": False} if name == "googlenet" else {}
    return torchvision.models.get_model(name, weights=None, **kwargs).eval(), (torch.randn(1, 3, side_px, side_px),), {}


def shrink(config: Any) -> None:
    for key, value in SHRINK.items():
        old = getattr(config, key, None)
        if isinstance(old, int) and not isinstance(old, bool) and old > 0:
            with contextlib.suppress(Exception):
                setattr(config, key, value)
    for key, value in vars(config).items():
        if hasattr(value, "to_dict") and key != "self":
            shrink(value)


def transformers_model(kind: str) -> Any:
    import transformers

    config = transformers.AutoConfig.for_model(kind)
    shrink(config)
    with contextlib.suppress(Exception):  # let the config check what depends on the shrunk values
        config = type(config)(**{k: v for k, v in config.to_dict().items() if k in SHRINK})
        shrink(config)
    model = transformers.AutoModel.from_config(config).eval()
    names = inspect.signature(model.forward).parameters
    kwargs: dict[str, Any] = {}
    ids = torch.randint(3, 100, (1, 16))
    if "input_ids" in names:
        kwargs["input_ids"] = ids
    if "decoder_input_ids" in names and config.is_encoder_decoder:
        kwargs["decoder_input_ids"] = torch.randint(3, 100, (1, 8))
    if "pixel_values" in names:
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", 64)
        side = size if isinstance(size, int) else 64
        kwargs["pixel_values"] = torch.randn(1, getattr(vision, "num_channels", 3), max(side, 32), max(side, 32))
    if "input_values" in names:
        kwargs["input_values"] = torch.randn(1, 4000) if kind != "audio-spectrogram-transformer" else torch.randn(1, 1024, 128)
    if "input_features" in names:
        kwargs["input_features"] = torch.randn(1, getattr(config, "num_mel_bins", 80), 3000)
    return model, (), kwargs


def compare(compiled: Any, model: Any, args: Any, kwargs: Any) -> float:
    eager = model(*args, **kwargs)
    got = compiled(*args, **kwargs)
    again = compiled(*args, **kwargs)
    return max(bench.error(got, eager), bench.error(again, eager))


def run(kind: str, spec: str, inductor: bool) -> dict[str, Any]:
    import flashover

    row: dict[str, Any] = {"kind": kind, "model": spec}
    torch.manual_seed(0)
    try:
        with limit(60), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, args, kwargs = {"timm": timm_model, "torchvision": torchvision_model, "transformers": transformers_model}[kind](spec)
            with torch.no_grad():
                model(*args, **kwargs)
    except Exception as failure:
        return row | {"status": "not built", "reason": f"{type(failure).__name__}: {failure}"[:150]}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with limit(120):
                start = time.perf_counter()
                try:
                    difference = compare(flashover.compile(model, fullgraph=True), model, args, kwargs)
                    row["status"] = "whole"
                except flashover.exc.Unsupported as declined:
                    row |= {"status": "declined", "reason": str(declined)[:300]}
                    difference = compare(flashover.compile(model), model, args, kwargs)
                row |= {"seconds": time.perf_counter() - start, "difference": difference}
                if not difference < 1e-3:
                    row |= {"status": "WRONG", "reason": f"difference {difference:.2e}"}
        except Exception as failure:
            row |= {"status": "CRASH", "reason": f"{type(failure).__name__}: {failure}"[:300]}
        flashover.reset()
        if inductor:
            try:
                with limit(300):
                    torch._dynamo.reset()
                    row["inductor"] = compare(torch.compile(model, backend="eager", fullgraph=True), model, args, kwargs)
            except Exception as failure:
                row["inductor"] = f"{type(failure).__name__}: {failure}"[:150]
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--kind", default="timm,torchvision,transformers")
    parser.add_argument("--inductor", action="store_true", help="also capture with torch.compile(backend='eager', fullgraph=True)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lists = {"timm": TIMM.split(), "torchvision": TORCHVISION.split(), "transformers": TEXT}
    wanted = [w for w in options.only.split(",") if w]
    rows = []
    for kind in options.kind.split(","):
        for spec in lists[kind]:
            if wanted and not any(w in spec for w in wanted):
                continue
            rows.append(run(kind, spec, options.inductor))
            row = rows[-1]
            print(f"{row['status']:10s} {kind}/{spec} {row.get('seconds', 0):.2f}s {row.get('reason', '')}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))
    count = {s: sum(r["status"] == s for r in rows) for s in ("whole", "declined", "WRONG", "CRASH", "not built")}
    print(count)
    return 1 if count["WRONG"] or count["CRASH"] else 0


if __name__ == "__main__":
    sys.exit(main())
