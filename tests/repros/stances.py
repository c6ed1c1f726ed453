"""Stances as torch 2.11 documents them, set through torch or through Flashover: aot_eager_then_compile, force_backend;
torch._dynamo.run compiles nothing; torch's recompile_limit counts where Flashover's option does not say otherwise."""

import torch

import flashover

x = torch.ones(3)


def made(call, *args):
    before = flashover.compile_stats()
    call(*args)
    after = flashover.compile_stats()
    return {k: after[k] - before[k] for k in after}


graphs = []


def backend(module, examples):
    graphs.append(module)
    return module.forward


for set_stance in (flashover.set_stance, torch.compiler.set_stance):
    f = flashover.compile(lambda x: x * 7)
    with set_stance("aot_eager_then_compile"):
        assert torch.equal(f(x), x * 7)
        assert f.entries() == []
        first = made(f, x)
        assert first["kernels"] == 1, first
    assert made(f, x)["frames"] == 0

    f = flashover.compile(lambda x: x * 5)
    with set_stance("default", force_backend="eager"):
        for _ in range(2):
            assert torch.equal(f(x), x * 5)
        assert f.entries() == []
    assert made(f, x)["kernels"] == 1

    graphs.clear()
    f = flashover.compile(lambda x: x * 9)
    with set_stance("default", force_backend=backend):
        for _ in range(2):
            assert torch.equal(f(x), x * 9)
    assert len(graphs) == 1

    f = flashover.compile(lambda x: x * 3)
    f(x)
    with set_stance("fail_on_recompile"):
        f(x)
        try:
            f(torch.ones(2, 2))
            raise AssertionError("fail_on_recompile: no error")
        except RuntimeError as e:
            assert "fail_on_recompile" in str(e)

try:
    flashover.set_stance("force_eager", force_backend="eager")
    raise AssertionError("force_backend with another stance")
except flashover.exc.UserError:
    pass

f = flashover.compile(lambda x: x * 7)
f(x)
again = made(torch._dynamo.run(f), torch.ones(2, 2))
assert again["frames"] == 0
assert again["eager_calls"] == 1
assert made(torch._dynamo.run(f), x)["eager_calls"] == 0

with torch._dynamo.config.patch(recompile_limit=20):
    g = flashover.compile(lambda x: x + 3, dynamic=False)
    assert made(lambda: [g(torch.ones(i)) for i in range(2, 15)])["frames"] == 13
