"""Real models end to end: whole capture, right results against an fp64 reference, eager's strides and dtypes."""

from __future__ import annotations

import models as bench
import pytest
import torch
import zoo

import flashover

# Beyond the benchmark's list: names asked of timm and torchvision as they are.
MORE = ["regnetx_002", "densenet121", "mobilenetv2_100", "ghostnet_100", "dla34", "repvgg_a0"]


def check(name: str, precision: str) -> None:
    flashover.reset()
    model, args, kwargs = bench.make(name, small=True)
    with bench.precision_scope(precision):
        before = flashover.compile_stats()
        fast = flashover.compile(model, fullgraph=True)
        results = [fast(*args, **kwargs) for _ in range(2)]
        after = flashover.compile_stats()
        eager = model(*args, **kwargs)
    assert after["graph_breaks"] == before["graph_breaks"]
    assert after["frames"] == before["frames"] + 1, "compiled once, and the second call hit"
    assert after["kernels"] > before["kernels"], "something was fused"
    for result in results:
        assert type(result) is type(eager)
        got, want = bench.tensors(result), bench.tensors(eager)
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            assert (a.dtype, a.shape, a.stride(), a.requires_grad) == (b.dtype, b.shape, b.stride(), b.requires_grad)

    with torch.no_grad():
        reference = model.double()(
            *[bench.to_double(a) for a in args], **{k: bench.to_double(v) for k, v in kwargs.items()}
        )
    for result in results:
        assert bench.error(result, reference) <= 2 * bench.error(eager, reference) + bench.FLOOR[precision]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", zoo.ALL)
def test_zoo(name: str, precision: str) -> None:
    check(name, precision)


@pytest.mark.parametrize("name", MORE)
def test_more_architectures(name: str) -> None:
    check(name, "fp32")
