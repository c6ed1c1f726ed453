"""Programs on CUDA tensors, compiled and held against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from gpu_tools import agree, check

import flashover

pytestmark = pytest.mark.gpu
BACKENDS = pytest.mark.parametrize("backend", ["eager", "flashover"])


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


PROGRAMS = {
    "pointwise": (lambda x, y: torch.relu(x * 2 + y).sigmoid() - 1.5, lambda: (rand(64, 100), rand(64, 100))),
    "broadcast": (lambda x, y: x[:, None] * y + 1, lambda: (rand(64), rand(33))),
    "odd sizes": (lambda x: (x * 3).tanh(), lambda: (rand(7, 13, 3),)),
    "transposed": (lambda x: x.t() + 1, lambda: (rand(40, 60),)),
    "sum last": (lambda x: x.sum(-1), lambda: (rand(64, 1000),)),
    "sum first": (lambda x: x.sum(0), lambda: (rand(1000, 64),)),
    "sum all": (lambda x: x.sum() * 2, lambda: (rand(100, 1000),)),
    "mean max min": (lambda x: (x.mean(1), x.max(1).values, x.amin((0, 1))), lambda: (rand(32, 50, 8),)),
    "argmax": (lambda x: x.argmax(-1), lambda: (rand(64, 300),)),
    "var": (lambda x: x.var(-1), lambda: (rand(64, 300),)),
    "softmax": (lambda x: x.softmax(-1), lambda: (rand(64, 513),)),
    "log_softmax": (lambda x: x.log_softmax(-1), lambda: (rand(4, 8, 1000),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (768,), w, b), lambda: (rand(128, 768), rand(768), rand(768))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 4, w, b), lambda: (rand(2, 16, 9, 9), rand(16), rand(16))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (256,), w), lambda: (rand(64, 256), rand(256))),
    "gelu": (lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"), lambda: (rand(1000),)),
    "linear": (lambda x, w, b: F.relu(F.linear(x, w, b)), lambda: (rand(64, 128), rand(32, 128), rand(32))),
    "bmm": (lambda a, b: torch.bmm(a, b).softmax(-1), lambda: (rand(4, 16, 32), rand(4, 32, 16))),
    "embedding": (
        lambda i, w: F.embedding(i, w) * 2,
        lambda: (torch.randint(0, 50, (4, 7), device="cuda"), rand(50, 24)),
    ),
    "cat": (lambda x, y: torch.cat([x, y * 2], 1), lambda: (rand(8, 5), rand(8, 6))),
    "stack": (lambda x, y: torch.stack([x, y], -1), lambda: (rand(8, 5), rand(8, 5))),
    "gather": (lambda x, i: x.gather(1, i), lambda: (rand(8, 20), torch.randint(0, 20, (8, 5), device="cuda"))),
    "index": (lambda x, i: x[i] + 1, lambda: (rand(20, 6), torch.randint(0, 20, (11,), device="cuda"))),
    "index cpu": (lambda x, i: x[i] + 1, lambda: (rand(20, 6), torch.randint(0, 20, (11,)))),
    "where": (lambda x: torch.where(x > 0, x, 0.1 * x), lambda: (rand(77),)),
    "arange": (lambda x: x + torch.arange(x.shape[0], device=x.device), lambda: (rand(55),)),
    "factories": (
        lambda x: x + torch.ones(5, device="cuda") * torch.full((5,), 2.0, device=x.device),
        lambda: (rand(5),),
    ),
    "constant": (lambda x: x + torch.tensor([1.0, 2.0, 3.0], device="cuda"), lambda: (rand(3),)),
    "cpu scalar": (lambda x, s: x * s + 1, lambda: (rand(30), torch.tensor(2.5))),
    "cpu scalar first": (lambda x, s: s - x, lambda: (rand(30), torch.tensor(2.5))),
    "number first": (lambda x: 2.0 - x, lambda: (rand(30),)),
    "views": (lambda x: x.view(4, -1).t()[1:, ::2].contiguous() + 1, lambda: (rand(8, 10),)),
    "view out": (lambda x: x[2:5], lambda: (rand(8, 10),)),
    "slice assign": (lambda x: _assign(x), lambda: (rand(8, 10),)),
    "in place": (lambda x: x.add_(1).mul_(2), lambda: (rand(8, 10),)),
    "cumsum": (lambda x: x.cumsum(-1), lambda: (rand(8, 100),)),
    "sort": (lambda x: x.sort(-1), lambda: (rand(8, 100),)),
    "topk": (lambda x: x.topk(5), lambda: (rand(8, 100),)),
    "pool": (lambda x: F.max_pool2d(x, 3, 2, 1) + 1, lambda: (rand(2, 4, 17, 17),)),
    "avg pool": (lambda x: F.avg_pool2d(F.relu(x), 2), lambda: (rand(2, 4, 16, 16),)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda: (rand(2, 4, 8, 8),)),
    "conv": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
        lambda: (rand(2, 3, 16, 16), rand(8, 3, 3, 3), rand(8)),
    ),
    "conv1d": (lambda x, w: F.conv1d(x, w), lambda: (rand(2, 3, 50), rand(8, 3, 5))),
    "conv channels last": (
        lambda x, w: F.conv2d(x, w) * 2,
        lambda: (rand(2, 8, 16, 16).to(memory_format=torch.channels_last), rand(8, 8, 3, 3)),
    ),
    "conv half": (
        lambda x, w: F.conv2d(x, w) * 2,
        lambda: (rand(2, 8, 16, 16, dtype=torch.half), rand(8, 8, 3, 3, dtype=torch.half)),
    ),
    "sdpa": (lambda q: F.scaled_dot_product_attention(q, q, q), lambda: (rand(2, 4, 64, 32, dtype=torch.bfloat16),)),
    "sdpa causal": (
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        lambda: (rand(2, 4, 64, 64, dtype=torch.half),),
    ),
    "sdpa f32": (lambda q: F.scaled_dot_product_attention(q, q, q), lambda: (rand(2, 4, 64, 32),)),
    "sdpa mask": (
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m),
        lambda: (rand(2, 4, 64, 32, dtype=torch.bfloat16), torch.rand(64, 64, device="cuda") > 0.3),
    ),
    "sdpa causal mask": (
        lambda q: F.scaled_dot_product_attention(
            q, q, q, attn_mask=torch.ones(64, 64, dtype=torch.bool, device=q.device).tril()
        ),
        lambda: (rand(2, 4, 64, 32, dtype=torch.bfloat16),),
    ),
    "sdpa heads": (
        lambda x: (
            F.scaled_dot_product_attention(*[t.view(2, 64, 4, 32).transpose(1, 2) for t in x.chunk(3, -1)])
            .transpose(1, 2)
            .reshape(2, 64, 128)
        ),
        lambda: (rand(2, 64, 384, dtype=torch.bfloat16),),
    ),
    "to cpu": (lambda x: (x * 2).cpu() + 1, lambda: (rand(30),)),
    "to cuda": (lambda x: x.cuda() * 2, lambda: (torch.randn(30),)),
    "half": (lambda x: (x * 2).float().exp(), lambda: (rand(300, dtype=torch.half),)),
    "bool": (lambda x: (x > 0) & (x < 1), lambda: (rand(300),)),
    "int": (lambda x: (x * 3 + 1) // 2 % 5, lambda: (torch.randint(-50, 50, (333,), device="cuda"),)),
    "empty": (lambda x: x * 2 + 1, lambda: (rand(0, 5),)),
}


def _assign(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[1:3, ::2] = 7
    y[:, 4] += 1
    return y


@BACKENDS
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, backend: str) -> None:
    fn, make = PROGRAMS[name]
    low = any(t.dtype in (torch.half, torch.bfloat16) for t in make())
    matmul = any(w in name for w in ("linear", "bmm", "conv"))
    rtol, atol = (2e-2, 2e-2) if low else (1e-3, 1e-3) if matmul else (1e-4, 1e-5)
    check(fn, *make(), backend=backend, rtol=rtol, atol=atol)


@BACKENDS
def test_autocast(backend: str) -> None:
    model = (
        torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 8))
        .cuda()
        .eval()
    )
    x = rand(16, 64)
    with torch.autocast("cuda", torch.bfloat16):
        check(model, x, backend=backend, rtol=2e-2, atol=2e-2)


def test_autocast_inside() -> None:
    model = torch.nn.Linear(64, 128).cuda()

    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            y = model(x)
        return y.float() * 2

    check(fn, rand(16, 64), rtol=2e-2, atol=2e-2)


def test_questions_about_devices() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        properties = torch.cuda.get_device_properties(x.device)
        x = x * properties.multi_processor_count + torch.cuda.get_device_capability()[0] + torch.cuda.device_count()
        return x.bfloat16() if torch.cuda.is_bf16_supported() else x * len(torch.cuda.get_device_name())

    check(fn, rand(16, 64))


def test_other_stream_and_threads() -> None:
    fast = flashover.compile(lambda x: (x * 2 + 1).softmax(-1))
    x = rand(64, 512)
    with torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            y = x + 1
            out = fast(y)
        torch.cuda.current_stream().wait_stream(stream)
        agree(out, ((x + 1) * 2 + 1).softmax(-1))
        agree(fast(x), (x * 2 + 1).softmax(-1))


def test_guards() -> None:
    fast = flashover.compile(lambda x: x.relu() + 1)
    with torch.no_grad():
        for x in (rand(5), rand(6), rand(5, dtype=torch.half), torch.randn(5), rand(5), torch.randn(5)):
            agree(fast(x), x.relu() + 1)


def test_tf32_setting_is_guarded() -> None:
    w = rand(256, 256)
    fast = flashover.compile(lambda x: x @ w)
    x = rand(256, 256)
    before = torch.get_float32_matmul_precision()
    try:
        with torch.no_grad():
            for precision in ("highest", "high", "highest"):
                torch.set_float32_matmul_precision(precision)
                agree(fast(x), x @ w, rtol=1e-6, atol=1e-5)
    finally:
        torch.set_float32_matmul_precision(before)


@BACKENDS
def test_mixing_devices_raises_as_eager_does(backend: str) -> None:
    fast = flashover.compile(lambda x, y: x + y, backend=backend)
    with torch.no_grad(), pytest.raises(RuntimeError, match="device"):
        fast(rand(5), torch.randn(5))


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two devices")
def test_another_device() -> None:
    fast = flashover.compile(lambda x: x * 2 + torch.arange(5, device=x.device))
    with torch.no_grad():
        for device in ("cuda:0", "cuda:1", "cuda:0"):
            x = torch.randn(5, device=device)
            agree(fast(x), x * 2 + torch.arange(5, device=device))


def test_default_device() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(5) * torch.tensor([1.0, 2, 3, 4, 5])

    fast = flashover.compile(fn, fullgraph=True)
    torch.set_default_device("cuda")
    try:
        with torch.no_grad():
            x = rand(5)
            agree(fast(x), fn(x))
            assert fast(x).is_cuda
    finally:
        torch.set_default_device(None)


@BACKENDS
def test_what_decides_between_going_on_and_raising(backend: str) -> None:
    """It is read where the program reads it; where it fails, eager's exception comes and the GPU can go on."""

    def fn(ids: torch.Tensor) -> torch.Tensor:
        lengths = (ids != 2).sum(dim=1)
        assert lengths.max().item() <= 3, "too long"
        if (ids < 0).any():
            raise ValueError("negative")
        return ids * 2

    fast = flashover.compile(fn, fullgraph=True, backend=backend)
    good = torch.tensor([[1, 2, 3, 4], [2, 2, 2, 2]], device="cuda")
    for _ in range(3):
        agree(fast(good), fn(good))
        with pytest.raises(AssertionError, match="too long"):
            fast(good + 4)
        with pytest.raises(ValueError, match="negative"):
            fast(good - 5 * (good == 1))
    agree(fast(good), fn(good))
