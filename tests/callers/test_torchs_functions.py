"""torch's own functions that say something of compiled code say it of ours, too."""

import torch
import torch._dynamo

import flashover


def f(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_resets() -> None:
    for reset in (flashover.reset, torch.compiler.reset, torch._dynamo.reset):
        compiled = flashover.compile(f, backend="eager")
        compiled(torch.ones(2))
        assert len(compiled.versions) == 1
        reset()
        assert not compiled.versions
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


def test_reset_is_torchs_as_well() -> None:
    seen = []

    def backend(module: torch.fx.GraphModule, examples: list[torch.Tensor]):
        seen.append(module)
        return module.forward

    flashover.compile(f, backend="eager")  # from now on they are followed
    compiled = torch.compile(f, backend=backend)
    for _ in range(2):
        compiled(torch.ones(2))
    assert len(seen) == 1
    torch._dynamo.reset()
    compiled(torch.ones(2))
    assert len(seen) == 2


def test_disable_without_wrapping() -> None:
    wrapped, plain = flashover.disable(f), flashover.disable(f, wrapping=False)
    assert wrapped.__wrapped__ is f and wrapped.__name__ == "f"
    assert not hasattr(plain, "__wrapped__")
    compiled = flashover.compile(lambda x: plain(x) * 2, backend="eager")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    assert compiled.stats().graph_breaks == 1
