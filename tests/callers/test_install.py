"""torch.compile while it is replaced: everyone's calls, however they got the function; and only those that mean it."""

import inspect
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import compile as compile_by_name
from torch import nn

import flashover
from flashover import _C, _install, exc


@pytest.fixture
def replaced() -> Iterator[None]:
    with flashover.replacing_torch_compile():
        yield


def is_ours(compiled: Any) -> bool:
    return isinstance(compiled, _C.CompiledCallable) or flashover._compile.original_module(compiled) is not compiled


def f(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def test_every_form_of_the_call(replaced: None) -> None:
    x = torch.randn(3)

    @torch.compile
    def bare(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    @torch.compile(fullgraph=True, dynamic=True)
    def with_arguments(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    made = [
        bare,
        with_arguments,
        torch.compile(f),
        compile_by_name(f, mode="reduce-overhead"),
        torch.compiler.compile(f),
    ]
    for compiled in made:
        assert is_ours(compiled)
        assert torch.allclose(compiled(x), f(x))
    assert with_arguments._flashover_settings.fullgraph and with_arguments._flashover_settings.dynamic
    assert made[3]._flashover_settings.mode == "reduce-overhead"


def test_module_compile(replaced: None) -> None:
    module, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
    want = module(x)
    called = []
    module.compile(fullgraph=True)
    module.register_forward_hook(lambda *_: called.append(1))
    assert is_ours(module._compiled_call_impl)
    assert torch.allclose(module(x), want)
    assert called == [1]
    assert torch.allclose(pickle.loads(pickle.dumps(nn.Sequential(*module)))(x), want)


def test_methods_and_classes(replaced: None) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        @torch.compile
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).relu()

    net, x = Net(), torch.randn(2, 4)
    assert is_ours(Net.__dict__["forward"])
    assert torch.allclose(net(x), net.inner(x).relu())


def test_other_backends_are_torchs(replaced: None) -> None:
    seen = []

    def backend(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        seen.append(module)
        return module.forward

    x = torch.randn(3)
    for name in ("eager", "aot_eager", backend):
        compiled = torch.compile(f, backend=name)
        assert not is_ours(compiled)
        assert torch.equal(compiled(x), f(x))
    assert [n.target for n in seen[0].graph.nodes if n.op == "call_method"] == ["sin"]  # a graph of torch.compile's own
    assert is_ours(torch.compile(f, backend="inductor")) and is_ours(torch.compile(f, backend="flashover"))
    decorator = torch.compile(backend="eager")
    assert not is_ours(decorator(f))


def test_what_is_refused(replaced: None) -> None:
    with pytest.raises(exc.InvalidOptions, match="not both"):
        torch.compile(f, mode="default", options={})
    with pytest.raises(exc.InvalidOptions, match="unknown mode"):
        torch.compile(f, mode="fastest")
    with pytest.raises(TypeError, match="unexpected"):
        torch.compile(f, speed=3)  # type: ignore[call-overload]
    assert torch.compile(f, disable=True) is f


def test_arguments_of_later_torches() -> None:
    """torch 2.14 has more of them."""
    translated = _install._translated(
        {"fullgraph": True, "recompile_limit": 3, "name": "f", "isolate_recompiles": True}
    )
    assert translated == {"fullgraph": True, "options": {"recompile_limit": 3}}
    translated = _install._translated({"mode": "reduce-overhead", "recompile_limit": 3})
    assert translated == {"options": {"cuda_graphs": True, "recompile_limit": 3}}


def test_install_and_uninstall() -> None:
    signature = inspect.signature(torch.compile)
    flashover.install()
    try:
        flashover.install()
        kept = torch.compile(f)
        assert is_ours(kept)
        assert inspect.signature(torch.compile) == signature
        with flashover.replacing_torch_compile():
            assert is_ours(compile_by_name(f))
        assert is_ours(torch.compile(f))
    finally:
        flashover.uninstall()
    assert not is_ours(torch.compile(f)) and not is_ours(compile_by_name(f))
    assert inspect.signature(torch.compile) == signature
    assert torch.allclose(kept(torch.ones(2)), f(torch.ones(2)))  # stays ours
    with flashover.replacing_torch_compile():
        flashover.uninstall()
        assert is_ours(torch.compile(f))
    assert not is_ours(torch.compile(f))


@flashover.replacing_torch_compile()
def compiled_here() -> Any:
    return torch.compile(f)


def test_as_a_decorator() -> None:
    assert is_ours(compiled_here())
    assert not is_ours(torch.compile(f))


def test_threads() -> None:
    """Blocks in several threads: torch.compile is ours until the last of them ends, and no call gets lost."""
    made: list[Any] = []
    faults: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(200):
                with flashover.replacing_torch_compile():
                    made.append(torch.compile(f))
                torch.compile(f, disable=True)
        except BaseException as e:
            faults.append(e)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults and len(made) == 600 and all(is_ours(c) for c in made)
    assert not is_ours(torch.compile(f))


def test_compiled_code_that_compiles(replaced: None) -> None:
    """torch.compile in a function that is compiled: the inner function is a part of the outer one."""

    def outer(x: torch.Tensor) -> torch.Tensor:
        return torch.compile(f)(x) * 2

    x = torch.randn(3)
    assert torch.allclose(torch.compile(outer, fullgraph=True)(x), f(x) * 2)
    assert torch.allclose(torch.compile(outer, backend="eager")(x), f(x) * 2)  # by torch's own capture


def test_switched_off_by_the_environment() -> None:
    code = """
import flashover, torch
flashover.install()
def f(x): return x + 1
assert torch.compile(f) is f
"""
    subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=170, env={**os.environ, "TORCHDYNAMO_DISABLE": "1"}
    )


@pytest.mark.skipif(not hasattr(torch.compiler, "set_default_backend"), reason="torch has it from 2.14 on")
def test_the_default_backend() -> None:
    torch.compiler.set_default_backend("eager")  # type: ignore[attr-defined]
    try:
        with flashover.replacing_torch_compile():
            assert not is_ours(torch.compile(f))
            torch.compiler.set_default_backend("flashover")  # type: ignore[attr-defined]
            assert is_ours(torch.compile(f))
    finally:
        torch.compiler.set_default_backend(None)  # type: ignore[attr-defined]
