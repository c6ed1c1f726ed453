"""Where and how: the second device, streams, threads, 8-bit floats, too little memory, a Triton that does not work."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gpu_tools import agree, check

import flashover

pytestmark = pytest.mark.gpu
MODES = pytest.mark.parametrize("mode", [None, "reduce-overhead"])
TWO = pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two devices")


def rand(*shape: int, device: str = "cuda") -> torch.Tensor:
    return torch.randn(*shape, device=device)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(64, 128), torch.nn.LayerNorm(128), torch.nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.norm(self.up(x))))


def train(model: Net, call: torch.nn.Module, xs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Losses and gradients of a step on each input."""
    out = []
    for x in xs:
        model.zero_grad(set_to_none=True)
        loss = call(x).square().mean()
        loss.backward()
        out += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
    return out


def in_threads(work: Callable[[Any], None], arguments: Iterable[Any]) -> None:
    threads = [threading.Thread(target=work, args=(a,)) for a in arguments]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


# ---- streams


@MODES
def test_training_on_a_stream_of_its_own(mode: str | None) -> None:
    model = Net().cuda()
    fast = flashover.compile(model, mode=mode)
    xs = [rand(32, 64) for _ in range(6)]
    twin = copy.deepcopy(model)
    expected = train(twin, twin, xs)
    train(model, fast, xs[:1])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late = [x + 0 for x in xs]
        got = train(model, fast, late)
    torch.cuda.current_stream().wait_stream(stream)
    agree(got, expected, rtol=1e-3, atol=1e-5)


@MODES
def test_two_streams_in_turns(mode: str | None) -> None:
    fast = flashover.compile(lambda x, w: (x @ w).relu().cumsum(-1) + 1, mode=mode)
    w, streams = rand(256, 256), [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    results = []
    with torch.no_grad():
        for i in range(12):
            with torch.cuda.stream(streams[i % 2]):
                torch.cuda._sleep(3_000_000)
                x = rand(256, 256)
                results.append((fast(x, w), (x @ w).relu().cumsum(-1) + 1))
    torch.cuda.synchronize()
    for got, want in results:
        agree(got, want, rtol=1e-3, atol=1e-2)


@pytest.mark.unsanitized
@MODES
def test_a_stream_for_each_thread(mode: str | None) -> None:
    fast = flashover.compile(lambda x: (x * 2 + 1).softmax(-1) @ x, mode=mode)
    wrong: list[str] = []

    def work(seed: int) -> None:
        try:
            generator = torch.Generator("cuda").manual_seed(seed)
            with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(30):
                    x = torch.randn(64, 64, device="cuda", generator=generator)
                    got = fast(x)
                    if not torch.allclose(got, (x * 2 + 1).softmax(-1) @ x, rtol=1e-3, atol=1e-4):
                        wrong.append("values")
        except Exception as e:
            wrong.append(repr(e))

    in_threads(work, range(4))
    assert not wrong


@MODES
def test_nothing_waits_for_the_device(mode: str | None) -> None:
    model, x = Net().cuda(), rand(32, 64)
    fast = flashover.compile(model, mode=mode)
    for _ in range(4):
        train(model, fast, [x])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            train(model, fast, [x])
    finally:
        torch.cuda.set_sync_debug_mode("default")


# ---- two devices


@TWO
@MODES
def test_a_model_on_the_second_device(mode: str | None) -> None:
    torch.cuda.set_device(0)
    model = Net().to("cuda:1")
    fast = flashover.compile(model, mode=mode, fullgraph=True)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(0)
    for _ in range(4):
        x = rand(32, 64, device="cuda:1")
        with torch.no_grad():
            agree(fast(x), model(x), rtol=1e-3, atol=1e-4)
        assert torch.cuda.current_device() == 0
    assert torch.cuda.memory_allocated(0) == before


@TWO
@MODES
def test_training_on_the_second_device(mode: str | None) -> None:
    torch.cuda.set_device(0)
    model = Net().to("cuda:1")
    twin = copy.deepcopy(model)
    fast = flashover.compile(model, mode=mode, fullgraph=True)
    xs = [rand(32, 64, device="cuda:1") for _ in range(5)]
    agree(train(model, fast, xs), train(twin, twin, xs), rtol=1e-3, atol=1e-5)
    assert torch.cuda.current_device() == 0
    # AdamW divides by the gradient's size: near 0 a rounding would decide the sign of a whole step.
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        p.grad, q.data = q.grad.clone(), p.detach().clone()
    optimizer, other = (torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, twin))
    step = flashover.compile(optimizer.step)
    for _ in range(3):
        step()
        other.step()
    agree(list(model.parameters()), list(twin.parameters()), rtol=1e-3, atol=1e-4)


@TWO
@MODES
def test_both_devices_in_turns_and_in_threads(mode: str | None) -> None:
    fast = flashover.compile(lambda x: (x * 2 + torch.arange(64, device=x.device)).softmax(-1) @ x, mode=mode)

    def eager(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + torch.arange(64, device=x.device)).softmax(-1) @ x

    wrong: list[str] = []

    def work(device: str) -> None:
        try:
            for _ in range(20):
                x = rand(64, 64, device=device)
                with torch.no_grad():
                    if not torch.allclose(fast(x), eager(x), rtol=1e-3, atol=1e-4):
                        wrong.append(device)
        except Exception as e:
            wrong.append(repr(e))

    for device in ("cuda:0", "cuda:1", "cuda:0"):
        work(device)
    in_threads(work, ("cuda:0", "cuda:1", "cuda:1", "cuda:0"))
    assert not wrong


@TWO
@MODES
def test_a_model_over_two_devices(mode: str | None) -> None:
    class Split(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Net().to("cuda:0"), Net().to("cuda:1")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).to("cuda:1")).to("cuda:0") * 2

    model = Split()
    twin = copy.deepcopy(model)
    fast = flashover.compile(model, mode=mode)
    xs = [rand(16, 64, device="cuda:0") for _ in range(4)]
    agree(train(model, fast, xs), train(twin, twin, xs), rtol=1e-3, atol=1e-5)
    with torch.no_grad():
        for x in xs:
            agree(fast(x), twin(x), rtol=1e-3, atol=1e-4)


@TWO
def test_the_current_device_decides_about_factories() -> None:
    fast = flashover.compile(lambda n: torch.ones(n, device="cuda") * 2)
    for device in (0, 1, 0, 1):
        with torch.cuda.device(device):
            assert fast(5).device == torch.device("cuda", device)


@TWO
def test_devices_that_do_not_mix_raise() -> None:
    fast = flashover.compile(lambda x, y: x + y)
    with torch.no_grad(), pytest.raises(RuntimeError, match="device"):
        fast(rand(5, device="cuda:0"), rand(5, device="cuda:1"))


# ---- 8-bit floats
E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2


@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16, torch.half])
@pytest.mark.parametrize("narrow", [E4, E5])
def test_8_bit_casts(narrow: torch.dtype, wide: torch.dtype) -> None:
    values = torch.cat(
        [
            rand(4000) * 3,
            rand(500) * 1e-3,
            torch.tensor(
                [
                    0.0,
                    -0.0,
                    448,
                    449,
                    464,
                    465,
                    1e5,
                    -1e5,
                    57344,
                    61440,
                    torch.nan,
                    torch.inf,
                    -torch.inf,
                    2.0**-9,
                    2.0**-10,
                    1.5 * 2.0**-10,
                ],
                device="cuda",
            ),
        ]
    ).to(wide)
    fast = flashover.compile(lambda x: (x * 1).to(narrow), fullgraph=True)
    back = flashover.compile(lambda x: x.to(wide) * 2, fullgraph=True)
    with torch.no_grad():
        low = fast(values)
        assert torch.equal(low.view(torch.uint8), (values * 1).to(narrow).view(torch.uint8))
        agree(back(low), low.to(wide) * 2, rtol=0, atol=0)


@pytest.mark.parametrize("rowwise", [False, True])
def test_8_bit_products(rowwise: bool) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, inverse: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        low = (x * inverse).clamp(-448, 448).to(E4)
        return F.relu(torch._scaled_mm(low, w.t(), 1 / inverse, s, out_dtype=torch.bfloat16)) + 1

    # Powers of two: any way of dividing rounds alike.
    inverse = 2.0 ** torch.randint(3, 7, (48, 1) if rowwise else (), device="cuda")
    s = torch.rand(1, 96, device="cuda") if rowwise else torch.rand((), device="cuda")
    check(fn, rand(48, 64), rand(96, 64).to(E4), inverse, s, rtol=2e-2, atol=2e-2)


# ---- trouble


@pytest.mark.unsanitized
@MODES
def test_too_little_memory_for_a_call_is_said_and_survived(mode: str | None) -> None:
    def fn(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n += 1
        wide = x[:, None] * torch.arange(64, device=x.device)
        return wide.softmax(0), wide.sin()

    fast = flashover.compile(fn, mode=mode)
    x, n = rand(1 << 20), torch.zeros((), device="cuda")
    total = torch.cuda.get_device_properties(0).total_memory
    with torch.no_grad():
        for calls in range(3):
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / total)
            try:
                with pytest.raises(torch.OutOfMemoryError):
                    fast(x, n)
            finally:
                torch.cuda.set_per_process_memory_fraction(1.0)
            n.fill_(calls)
            agree(fast(x, n), fn(x, torch.zeros((), device="cuda")), rtol=1e-4, atol=1e-5)
            assert float(n) == calls + 1


def run_elsewhere(code: str, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    here = Path(flashover.__file__).parent.parent
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(here)]), **variables}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=100)


@pytest.mark.unsanitized
@pytest.mark.parametrize("text", ["raise ImportError('no triton today')", "x = 1", "import os; os._exit(7)"])
def test_a_triton_that_does_not_work_ends_in_eager(text: str, tmp_path: Path) -> None:
    package = tmp_path / "triton"
    package.mkdir()
    # The compile workers' Triton; torch finds none.
    elsewhere = "import sys\nif 'triton_worker' not in sys.argv[0]:\n    raise ImportError('not here')\n"
    (package / "__init__.py").write_text(elsewhere + text)
    code = """
import torch, warnings, flashover
f = flashover.compile(lambda x: (x * 2 + 1).softmax(-1))
with warnings.catch_warnings(record=True) as seen, torch.no_grad():
    warnings.simplefilter("always")
    for n in (64, 64, 32):
        x = torch.randn(8, n, device="cuda")
        torch.testing.assert_close(f(x), (x * 2 + 1).softmax(-1))
ours = [str(w.message) for w in seen if "flashover" in str(w.message) or "riton" in str(w.message)]
print(len(ours), ours)
"""
    r = run_elsewhere(code, tmp_path, FLASHOVER_CACHE_DIR=str(tmp_path / "cache"))
    assert r.returncode == 0, r.stderr
    assert r.stdout.startswith("1 "), r.stdout + r.stderr
