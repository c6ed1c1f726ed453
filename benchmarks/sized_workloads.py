"""Programs whose sizes change, as users have them: text, packed documents, images, experts, bags, detection.

`WORKLOADS` maps a name to how its model is made and what its calls get at each of eight sizes, which are drawn once
(seeded), so that every way of running them sees the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

F = nn.functional

# (batch, length), (documents of a packed sequence), (batch, height, width)
LENGTHS = [(8, 37), (3, 128), (1, 200), (5, 61), (16, 24), (2, 311), (7, 93), (4, 256)]
DOCUMENTS = [
    [40, 7, 81, 3],
    [128],
    [5, 5, 90, 33, 17],
    [64, 64],
    [1, 150, 2],
    [99, 13, 44, 8],
    [31, 31, 31, 31],
    [200, 3],
]
IMAGES = [
    (8, 64, 64),
    (4, 96, 96),
    (6, 80, 112),
    (2, 128, 96),
    (3, 160, 160),
    (5, 64, 96),
    (1, 96, 128),
    (7, 72, 88),
]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            p.view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in self.qkv(self.norm(x)).split(c, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Packed(nn.Module):
    """A language model over documents in one row: each token sees those before it in its own document."""

    def __init__(self, words: int = 4096, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        self.blocks = nn.ModuleList([Block(width, 4) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor, ends: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        place = torch.arange(tokens.shape[0], device=tokens.device)
        document = torch.bucketize(place, ends, right=True)
        starts = F.pad(ends, (1, 0))[document]
        mask = (document[:, None] == document[None]) & (place[:, None] >= place[None])
        x = (self.words(tokens) + self.places(place - starts))[None]
        for block in self.blocks:
            x = block(x, mask)
        return F.cross_entropy(self.head(self.norm(x))[0], targets, ignore_index=-1)


class Bags(nn.Module):
    """DLRM: dense features, four tables of bags, products of all pairs, an MLP."""

    def __init__(self, tables: int = 4, rows: int = 5000, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables)])
        self.dense = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, dense: torch.Tensor, values: list[torch.Tensor], offsets: list[torch.Tensor]) -> torch.Tensor:
        x = self.dense(dense)
        bags = [table(v, o) for table, v, o in zip(self.tables, values, offsets, strict=True)]
        features = torch.stack([x, *bags], 1)
        products = features @ features.transpose(1, 2)
        i, j = torch.tril_indices(features.shape[1], features.shape[1], -1, device=x.device)
        return self.top(torch.cat([x, products[:, i, j]], 1))


class UNet(nn.Module):
    """Two levels down and up; images of any height and width are padded by interpolation to what the skips have."""

    def __init__(self, width: int = 16, classes: int = 5) -> None:
        super().__init__()

        def twice(a: int, b: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU()
            )

        self.down = nn.ModuleList([twice(3, width), twice(width, 2 * width), twice(2 * width, 4 * width)])
        self.up = nn.ModuleList([twice(6 * width, 2 * width), twice(3 * width, width)])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for step in self.down:
            x = step(x if not kept else F.max_pool2d(x, 2))
            kept.append(x)
        for step, skip in zip(self.up, reversed(kept[:-1]), strict=True):
            x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            x = step(torch.cat([x, skip], 1))
        return self.head(x)


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
    return BertModel(config).eval()


def mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralModel

    config = MixtralConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=8,
    )
    return MixtralModel(config)


def resnet() -> nn.Module:
    import torchvision

    return torchvision.models.resnet18(num_classes=10)


def lraspp() -> nn.Module:
    import torchvision

    return torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)


def retinanet() -> nn.Module:
    import torchvision

    return torchvision.models.detection.retinanet_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=5, min_size=128, max_size=256
    ).eval()


def text(size: tuple[int, int]) -> tuple[Any, ...]:
    return (torch.randint(0, 4000, size),)


def floats(size: tuple[int, int]) -> tuple[Any, ...]:
    return (torch.randn(*size, 256),)


def rows(size: tuple[int, int]) -> tuple[Any, ...]:
    return (torch.randn(size[0] * size[1], 256),)


def packed(size: list[int]) -> tuple[Any, ...]:
    total = sum(size)
    return torch.randint(0, 4096, (total,)), torch.tensor(size).cumsum(0), torch.randint(-1, 4096, (total,))


def images(size: tuple[int, int, int]) -> tuple[Any, ...]:
    return (torch.randn(size[0], 3, *size[1:]),)


def listed_images(size: tuple[int, int, int]) -> tuple[Any, ...]:
    return ([torch.rand(3, *size[1:])],)


def bags(size: tuple[int, int]) -> tuple[Any, ...]:
    batch, longest = size[0] * 8, 1 + size[1] // 20
    lengths = [torch.randint(0, longest, (batch,)) for _ in range(4)]
    return (
        torch.randn(batch, 13),
        [torch.randint(0, 5000, (int(n.sum()),)) for n in lengths],
        [n.cumsum(0) - n for n in lengths],
    )


@dataclass(frozen=True)
class Workload:
    make: Callable[[], nn.Module]
    inputs: Callable[[Any], tuple[Any, ...]]
    sizes: list[Any]
    training: bool = False


WORKLOADS: dict[str, Workload] = {
    "bert, batch and length": Workload(bert, text, LENGTHS),
    "transformer blocks": Workload(lambda: nn.Sequential(*[Block(256, 4) for _ in range(4)]), floats, LENGTHS),
    "mlp, batch": Workload(
        lambda: nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256)), rows, LENGTHS
    ),
    "mixtral, tokens": Workload(lambda: mixtral().eval(), text, LENGTHS),
    "dlrm, bags": Workload(lambda: Bags().eval(), bags, LENGTHS),
    "segmentation, rectangles": Workload(lambda: lraspp().eval(), images, IMAGES),
    "u-net, rectangles": Workload(lambda: UNet().eval(), images, IMAGES),
    "detection, image sizes": Workload(retinanet, listed_images, IMAGES),
    "transformer blocks, training": Workload(
        lambda: nn.Sequential(*[Block(256, 4) for _ in range(4)]), floats, LENGTHS, training=True
    ),
    "mlp, training": Workload(
        lambda: nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256)),
        rows,
        LENGTHS,
        training=True,
    ),
    "packed documents, training": Workload(Packed, packed, DOCUMENTS, training=True),
    "mixtral, training": Workload(mixtral, text, LENGTHS, training=True),
    "dlrm, training": Workload(Bags, bags, LENGTHS, training=True),
    "resnet18, training": Workload(resnet, images, IMAGES, training=True),
    "u-net, training": Workload(UNet, images, IMAGES, training=True),
    "segmentation, training": Workload(lraspp, images, IMAGES, training=True),
}
