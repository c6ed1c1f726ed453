"""Models and functions of other libraries, as their users call them: whole or not, right or not, versions by batch.

    pip install vit-pytorch x-transformers kornia monai segmentation-models-pytorch open_clip_torch diffusers ...
    python benchmarks/other_libraries.py [--train] [--sizes] [--device cuda --jobs 12] [--limit 150] [names...]

What is not installed is left out. A line each: breaks, seconds of the first call, the largest error of a result (with
--train of a gradient, too) in units of the largest number, and where that is above 1e-5, of eager and of ours to fp64.
--sizes calls with five batch sizes and prints how many versions there are after each. A case ends after --limit seconds.
With --jobs, so many processes share the cases.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import math
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

import flashover

Case = tuple[Callable[..., Any], tuple[Any, ...]]


def imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def image(size: int = 64, batch: int = 2, channels: int = 3) -> torch.Tensor:
    return torch.rand(batch, channels, size, size)


def volume(size: int = 32) -> torch.Tensor:
    return torch.rand(1, 1, size, size, size)


def words(length: int = 48, kinds: int = 100) -> torch.Tensor:
    return torch.randint(0, kinds, (2, length))


VIT = {"image_size": 64, "patch_size": 8, "num_classes": 10, "dim": 64, "depth": 2, "heads": 4, "mlp_dim": 128}
PYRAMID = {"num_classes": 10, "dim": (32, 64, 128, 256), "depth": (1, 1, 2, 1)}
# Class, its arguments, the call's: of vit_pytorch.
VITS: dict[str, tuple[dict[str, Any], int]] = {
    "ViT": (VIT, 64),
    "simple_vit.SimpleViT": (VIT, 64),
    "deepvit.DeepViT": (VIT, 64),
    "cait.CaiT": ({**VIT, "cls_depth": 1}, 64),
    "rvt.RvT": (VIT, 64),
    "parallel_vit.ViT": ({**VIT, "num_parallel_branches": 2}, 64),
    "vit_for_small_dataset.ViT": (VIT, 64),
    "learnable_memory_vit.ViT": (VIT, 64),
    "simple_vit_with_qk_norm.SimpleViT": (VIT, 64),
    "simple_vit_with_fft.SimpleViT": ({**VIT, "freq_patch_size": 8}, 64),
    "normalized_vit.nViT": (VIT, 64),
    "cvt.CvT": ({"num_classes": 10}, 64),
    "regionvit.RegionViT": ({**PYRAMID, "window_size": 7}, 224),
    "crossformer.CrossFormer": (PYRAMID, 224),
    "xcit.XCiT": ({**VIT, "cls_depth": 1, "local_patch_kernel_size": 3}, 64),
}
# Arguments of x_transformers.Decoder.
DECODERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True, "alibi_num_heads": 2},
    "relative": {"rel_pos_bias": True},
    "rms_glu": {"use_rmsnorm": True, "ff_glu": True},
    "talking_heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
    "qk_norm": {"attn_qk_norm": True},
    "top_k": {"attn_sparse_topk": 8},
    "one_kv_head": {"attn_one_kv_head": True},
    "memory": {"attn_num_mem_kv": 8},
    "shift": {"shift_tokens": 1},
    "flash": {"attn_flash": True},
    "streams": {"num_residual_streams": 2},
    "soft_cap": {"attn_softclamp_logits": True},
    "cope": {"attn_use_cope": True},
}
UNET = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
CROSS = {**UNET, "cross_attention_dim": 32, "attention_head_dim": 8}
STEP = torch.tensor([5])
DIFFUSERS: dict[str, tuple[dict[str, Any], tuple[torch.Tensor, ...]]] = {
    "UNet2DConditionModel": (
        {
            **CROSS,
            "sample_size": 32,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        },
        (torch.rand(1, 4, 32, 32), STEP, torch.rand(1, 7, 32)),
    ),
    "AutoencoderKL": (
        {**UNET, "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
        (torch.rand(1, 3, 32, 32),),
    ),
    "DiTTransformer2DModel": (
        {
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "in_channels": 4,
            "num_layers": 2,
            "sample_size": 16,
            "norm_num_groups": 4,
        },
        (torch.rand(2, 4, 16, 16), torch.tensor([3, 4]), torch.tensor([1, 2])),
    ),
}
SEGMENTATION = [
    "Unet",
    "UnetPlusPlus",
    "FPN",
    "PSPNet",
    "DeepLabV3",
    "DeepLabV3Plus",
    "Linknet",
    "MAnet",
    "UPerNet",
    "Segformer",
]
VOLUMES = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
MONAI: dict[str, dict[str, Any]] = {
    "UNet": {**VOLUMES, "channels": (8, 16, 32), "strides": (2, 2)},
    "BasicUNet": {**VOLUMES, "features": (8, 8, 16, 16, 32, 8)},
    "SegResNet": {**VOLUMES, "init_filters": 8},
    "AttentionUnet": {**VOLUMES, "channels": (8, 16, 32), "strides": (2, 2)},
}
GRAPHS = [
    "GCNConv",
    "GATConv",
    "GATv2Conv",
    "SAGEConv",
    "GraphConv",
    "TransformerConv",
    "LEConv",
    "FeaStConv",
    "ResGatedGraphConv",
]
KORNIA: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "filters.gaussian_blur2d": (image, ((5, 5), (1.5, 1.5))),
    "filters.sobel": (image, ()),
    "filters.median_blur": (image, ((3, 3),)),
    "filters.bilateral_blur": (image, ((3, 3), 0.1, (1.5, 1.5))),
    "color.rgb_to_lab": (image, ()),
    "color.rgb_to_hsv": (image, ()),
    "enhance.equalize": (image, ()),
    "geometry.pyrdown": (image, ()),
}
YOLOS = ["yolov8n", "yolo11n", "yolov5n", "yolov10n", "yolov9t", "yolo12n"]


def with_rest(f: Callable[..., Any], rest: tuple[Any, ...]) -> Callable[[torch.Tensor], Any]:
    return lambda x: f(x, *rest)


def cases() -> dict[str, Callable[[], Case]]:
    """Makers by name; each imports its library."""
    found: dict[str, Callable[[], Case]] = {}
    for path, (how, size) in VITS.items():
        found["vit_pytorch." + path] = lambda p=path, h=how, s=size: (
            imported("vit_pytorch." + p)(**h),
            (image(s),),
        )
    for name, how in DECODERS.items():
        found["x_transformers." + name] = lambda h=how: (
            imported("x_transformers.TransformerWrapper")(
                num_tokens=100,
                max_seq_len=64,
                attn_layers=imported("x_transformers.Decoder")(dim=64, depth=2, heads=4, **h),
            ),
            (words(),),
        )
    for name, (how, args) in DIFFUSERS.items():
        found["diffusers." + name] = lambda n=name, h=how, a=args: (imported("diffusers." + n)(**h), a)
    for name in SEGMENTATION:
        found["segmentation_models_pytorch." + name] = lambda n=name: (
            imported("segmentation_models_pytorch." + n)("resnet18", encoder_weights=None, classes=3),
            (image(),),
        )
    for name, how in MONAI.items():
        found["monai." + name] = lambda n=name, h=how: (imported("monai.networks.nets." + n)(**h), (volume(),))
    for name in GRAPHS:
        found["torch_geometric." + name] = lambda n=name: (
            imported("torch_geometric.nn." + n)(16, 16),
            (torch.randn(20, 16), torch.randint(0, 20, (2, 60))),
        )
    for path, (given, rest) in KORNIA.items():
        found["kornia." + path] = lambda p=path, g=given, r=rest: (with_rest(imported("kornia." + p), r), (g(32),))
    for name in YOLOS:
        found["ultralytics." + name] = lambda n=name: (
            imported("ultralytics.nn.tasks.DetectionModel")(n + ".yaml", ch=3, nc=4, verbose=False),
            (image(128, 1),),
        )
    return found


def tensors(o: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(o.to_tuple() if hasattr(o, "to_tuple") else o) if isinstance(t, torch.Tensor)]


def results(f: Any, args: tuple[Any, ...], parameters: list[torch.Tensor] | None) -> list[torch.Tensor]:
    """With parameters: those of the gradients, too."""
    torch.manual_seed(1)
    if parameters is None:
        with torch.no_grad():
            return tensors(f(*args))
    out = tensors(f(*args))
    total = torch.stack([t.abs().sum().double() for t in out if t.requires_grad]).sum()
    gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    return [t.detach() for t in (*out, *gradients) if t is not None]


def error(got: list[torch.Tensor], want: list[torch.Tensor]) -> float:
    """The largest difference, in units of the largest number of the tensor, or of all divided by 1000."""
    if [t.shape for t in got] != [t.shape for t in want]:
        return math.inf
    largest = max((float(t.double().abs().max()) for t in want if t.numel()), default=0.0)
    worst = 0.0
    for g, w in zip(got, want, strict=True):
        if w.numel():
            size = float(w.double().abs().max()) + 1e-3 * largest + 1e-6
            worst = max(worst, float((g.double() - w.double()).abs().nan_to_num(math.inf).max()) / size)
    return worst


def in_f64(x: Any) -> Any:
    return pytree.tree_map(lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, x)


def trained(f: Any) -> list[torch.Tensor]:
    return [p for p in f.parameters() if p.requires_grad]


def check(f: Any, args: tuple[Any, ...], train: bool) -> str:
    module = isinstance(f, torch.nn.Module)
    if train and not module:
        return "a function"
    ours = copy.deepcopy(f)
    fast = flashover.compile(ours, options={"retreat": "never"})
    begin = time.perf_counter()
    got = results(fast, args, trained(ours) if train else None)
    seconds = time.perf_counter() - begin
    eager = copy.deepcopy(f)
    want = results(eager, args, trained(eager) if train else None)
    text, worst = "", error(got, want)
    if worst > 1e-5 and module:
        wide = copy.deepcopy(f).double()
        exact = results(wide, in_f64(args), trained(wide) if train else None)
        text = f" (to fp64: eager {error(want, exact):.1e}, ours {error(got, exact):.1e})"
    breaks = flashover.live(fast).explain().breaks
    return f"{len(breaks)} breaks, {seconds:.1f} s, error {worst:.1e}{text}"


def check_sizes(f: Any, args: tuple[Any, ...]) -> str:
    first = next(t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)).shape[0]

    def of_batch(n: int) -> Any:
        return pytree.tree_map(
            lambda t: torch.cat([t] * (n // first + 1))[:n] if t.dim() and t.shape[0] == first else t, args
        )

    fast, counts, worst = flashover.compile(f, options={"retreat": "never"}), [], 0.0
    for n in (first, first + 1, first + 3, 7, 11):
        given = of_batch(n)
        worst = max(worst, error(results(fast, given, None), results(f, given, None)))
        counts.append(len(flashover.live(fast).versions))
    return f"versions {counts}, error {worst:.1e}"


def on(device: str, x: Any) -> Any:
    return pytree.tree_map(lambda t: t.to(device) if isinstance(t, (torch.Tensor, torch.nn.Module)) else t, x)


def run(names: list[str], train: bool, sizes: bool, device: str, part: tuple[int, int], limit: int) -> Iterator[str]:
    def over(*_: Any) -> None:
        raise TimeoutError(f"over {limit} s")

    signal.signal(signal.SIGALRM, over)
    for name, make in list(cases().items())[part[0] :: part[1]]:
        if names and not any(n in name for n in names):
            continue
        signal.alarm(limit)
        try:
            torch.manual_seed(0)
            f, args = on(device, make())
            if isinstance(f, torch.nn.Module):
                f.train(train)
            yield f"{name}: {check_sizes(f, args) if sizes else check(f, args, train)}"
        except ImportError:
            yield f"{name}: not installed"
        except Exception as failure:  # a case that fails is a result, and the others must go on
            yield f"{name}: {type(failure).__name__}: {str(failure)[:160]}"
        finally:
            signal.alarm(0)


def shared(jobs: int) -> None:
    parts = [subprocess.Popen([sys.executable, *sys.argv, "--part", f"{k}/{jobs}"]) for k in range(jobs)]
    for p in parts:
        p.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of the names of the cases to run")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--part", default="", help="K/N: every Nth case from the Kth on")
    parser.add_argument("--limit", type=int, default=150)
    options = parser.parse_args()
    if options.jobs > 1 and not options.part:
        shared(options.jobs)
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # errors are judged in f32's units
    k, n = (int(x) for x in (options.part or "0/1").split("/"))
    for line in run(options.names, options.train, options.sizes, options.device, (k, n), options.limit):
        print(line, flush=True)


if __name__ == "__main__":
    main()
