"""Detection: what comes behind the network, in programs of users and in torchvision's models, as one graph."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from comparing import differ
from torch import Tensor, nn

import flashover

torchvision = pytest.importorskip("torchvision")
ops = torchvision.ops


def boxes(n: int, labels: int = 3, size: float = 50) -> tuple[Tensor, Tensor, Tensor]:
    corner = torch.rand(n, 2) * size
    return torch.cat([corner, corner + torch.rand(n, 2) * size], 1), torch.rand(n), torch.randint(0, labels, (n,))


def each_image(corners: Tensor, scores: Tensor, labels: Tensor) -> list[tuple[Tensor, ...]]:
    """Two images, one after the other: threshold, suppression by class, the best few."""
    out = []
    for one, score, label in zip(corners.split(10), scores.split(10), labels.split(10), strict=True):
        kept = torch.where(score > 0.4)[0]
        one, score, label = ops.clip_boxes_to_image(one[kept], (60, 70)), score[kept], label[kept]
        kept = ops.batched_nms(one, score, label, 0.4)[:5]
        out.append((one[kept] * 2, score[kept], label[kept]))
    return out


def levels(corners: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Candidates of several levels, put together."""
    chosen, found = [], []
    for level in range(3):
        likely = (labels == level) & (scores > 0.3)
        score, at = scores[likely].topk(min(4, int(likely.sum())))
        chosen.append(corners[likely][at])
        found.append(score)
    all_boxes, all_scores = torch.cat(chosen), torch.cat(found)
    kept = ops.nms(all_boxes, all_scores, 0.5)
    return all_boxes[kept].clamp(max=60), all_scores[kept]


def classes(corners: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Suppression class by class, in a mask."""
    keep = torch.zeros_like(scores, dtype=torch.bool)
    for label in range(3):
        of_class = torch.where(labels == label)[0]
        keep[of_class[ops.nms(corners[of_class], scores[of_class], 0.4)]] = True
    (kept,) = torch.where(keep)
    kept = kept[scores[kept].sort(descending=True)[1]]
    return corners[kept], kept


def large_enough(corners: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    kept = ops.remove_small_boxes(corners, 10.0)
    one, score = corners[kept], scores[kept]
    kept = ops.nms(one, score, 0.3)
    area = ops.box_area(one[kept])
    return ops.box_iou(one[kept], corners), area / area.sum()


PROGRAMS: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "each image": each_image,
    "levels": levels,
    "classes": classes,
    "large enough": large_enough,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_users(name: str) -> None:
    f = PROGRAMS[name]
    flashover.reset()
    compiled = flashover.compile(f, fullgraph=True)
    before = flashover.compile_stats()
    with torch.no_grad():
        for seed in range(12):
            torch.manual_seed(seed)
            args = list(boxes(20))
            if seed % 4 == 1:
                args[1] *= 0.1  # nothing is likely
            if seed % 4 == 2:
                args[2] = torch.full_like(args[2], 1)
            if seed % 4 == 3:
                args[1] = args[1].mul(0.1).index_fill(0, torch.tensor([3, 14]), 0.9)  # one in each image
            got, want, exact = compiled(*args), f(*args), f(args[0].double(), args[1].double(), args[2])
            assert (wrong := differ(got, want, rtol=1e-5, atol=1e-5, strides=False)) == "", f"seed {seed}: {wrong}"
            for g, e in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(exact), strict=True):
                torch.testing.assert_close(g.double(), e.double(), rtol=1e-4, atol=1e-4, equal_nan=True)
    after = flashover.compile_stats()
    assert after["graphs"] - before["graphs"] <= 3
    assert after["eager_calls"] - before["eager_calls"] <= 3, "seldom cases"


def detector(name: str) -> nn.Module:
    """With random weights, scores far apart and boxes that are not all alike."""
    torch.manual_seed(0)
    kind = getattr(torchvision.models.detection, name)
    sized = {} if name.startswith("ssd") else {"min_size": 64, "max_size": 96}
    few = {} if name.startswith("faster") else {"topk_candidates": 100}
    model = kind(weights=None, weights_backbone=None, num_classes=5, **few, **sized).eval()
    with torch.no_grad():
        for where, p in model.named_parameters():
            if ("cls_" in where or "classification" in where) and where.endswith("weight") and p.dim() > 1:
                p.mul_(4)
    return model


def detections(result: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """In an order that roundings do not change."""
    return [
        {k: v[one["scores"].double().mul(1e4).round().sort(stable=True)[1]] for k, v in one.items()} for one in result
    ]


MODELS = ["retinanet_resnet50_fpn", "fcos_resnet50_fpn", "fasterrcnn_resnet50_fpn", "ssdlite320_mobilenet_v3_large"]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.timeout(600)
def test_models_are_whole(name: str) -> None:
    model = detector(name)
    flashover.reset()
    compiled = flashover.compile(model, fullgraph=True)
    before = flashover.compile_stats()
    counts = []
    with torch.no_grad():
        for seed, sizes in enumerate([[(60, 50)], [(64, 64)], [(48, 80), (64, 40)], [(60, 50)]]):
            torch.manual_seed(seed)
            images = [torch.rand(3, *size) for size in sizes]
            want, got = model(images), compiled(images)
            counts += [len(one["boxes"]) for one in want]
            assert [len(one["boxes"]) for one in got] == [len(one["boxes"]) for one in want]
            for g, w in zip(got, want, strict=True):
                torch.testing.assert_close(g["scores"], w["scores"], rtol=1e-3, atol=1e-4)
    after = flashover.compile_stats()
    assert after["graph_breaks"] == before["graph_breaks"]
    assert max(counts) > 0


def padded(image: Tensor, by: int = 32) -> Tensor:
    """As torchvision's transform batches images: sizes rounded up, the image written into zeros."""
    height, width = (math.ceil(float(n) / by) * by for n in image.shape[1:])
    batch = image.new_full([1, 3, height, width], 0)
    batch[0, : image.shape[0], : image.shape[1], : image.shape[2]].copy_(image)
    return batch


def cropped(image: Tensor) -> Tensor:
    return padded(image)[0, :, : image.shape[1], : image.shape[2]].mul(2)


@pytest.mark.parametrize("f", [padded, cropped])
def test_sizes_that_are_rounded_up(f: Callable[[Tensor], Tensor]) -> None:
    compiled = flashover.compile(f, fullgraph=True, dynamic=True)
    before = flashover.compile_stats()["graphs"]
    for size in [(64, 64), (96, 96), (80, 112), (1, 31), (33, 64), (300, 100)]:
        image = torch.rand(3, *size)
        assert torch.equal(compiled(image), f(image)), size
    assert flashover.compile_stats()["graphs"] - before == 1


@pytest.mark.timeout(600)
def test_images_of_many_sizes_share_versions() -> None:
    """Sizes on which a level has one row or column are cases of their own; no other size is compiled for itself."""
    torch.manual_seed(0)
    model = detector("retinanet_resnet50_fpn")
    model.transform.min_size, model.transform.max_size = (136,), 256
    compiled = flashover.compile(model)
    before = flashover.compile_stats()
    with torch.no_grad():
        for seed, size in enumerate(
            [(64, 64), (96, 96), (80, 112), (128, 96), (160, 160), (64, 96), (72, 88), (90, 70)]
        ):
            torch.manual_seed(seed)
            images = [torch.rand(3, *size)]
            (want,), (got,) = model(images), compiled(images)
            assert len(got["boxes"]) == len(want["boxes"]), size
            torch.testing.assert_close(got["scores"], want["scores"], rtol=1e-3, atol=1e-4)
    after = flashover.compile_stats()
    assert after["graphs"] - before["graphs"] <= 4
    assert after["eager_calls"] == before["eager_calls"] and after["graph_breaks"] == before["graph_breaks"]
