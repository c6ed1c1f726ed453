"""Compiled optimizer steps on a device, and numbers that change under CUDA graphs."""

import pytest
import torch

import flashover

pytestmark = pytest.mark.gpu
O = torch.optim


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize(
    "cls,kw",
    [
        (O.SGD, {"momentum": 0.9}),
        (O.Adam, {"foreach": True}),
        (O.AdamW, {"foreach": True}),
        (O.AdamW, {"foreach": False}),
        (O.AdamW, {"capturable": True, "foreach": True}),
        (O.RMSprop, {}),
        (O.Adagrad, {}),
    ],
)
def test_steps_as_eager(cls, kw, mode):
    def build():
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(s, device="cuda")) for s in ((64, 33), (17,), (5, 5, 5))]
        return params, cls(params, lr=0.05, **kw)

    params, opt = build()
    other, eager = build()
    flashover.reset()
    step = flashover.compile(opt.step, mode=mode) if mode else flashover.compile(opt.step)
    for i in range(10):
        for ps, o in ((params, opt), (other, eager)):
            torch.manual_seed(i)
            for p in ps:
                p.grad = torch.randn_like(p)
            o.param_groups[0]["lr"] = 0.05 / (i + 1)
        step()
        eager.step()
        for p, q in zip(params, other, strict=True):
            torch.testing.assert_close(p, q, rtol=2e-5, atol=2e-6)
    assert flashover.compile_stats()["frames"] > 0


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_a_number_that_changes_is_respected(mode):
    def f(x, a):
        return torch.add(x * a, x, alpha=-a) + a

    fast = flashover.compile(f, mode=mode) if mode else flashover.compile(f)
    x = torch.randn(1000, device="cuda")
    outs = [(v, fast(x, v)) for v in (0.1 * i for i in range(1, 20))]
    for v, out in outs:
        torch.testing.assert_close(out, f(x, v))
