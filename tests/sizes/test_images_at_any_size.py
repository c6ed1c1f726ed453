"""Images of other sizes and batches of other lengths than were traced: operators and small models."""

from __future__ import annotations

import pytest
import torch
from comparing import differ
from sized_images import MODULES, PROGRAMS, Trained, cover, images, rectangles, weighed

import flashover

SIZES = (5, 2, 3, 8, 4, 11, 9)


def compiles() -> int:
    return flashover.compile_stats()["graphs"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compile_serves_every_size(name: str) -> None:
    f, shape = PROGRAMS[name]
    compiled = flashover.compile(f, fullgraph=True, options={"recompile_limit": 64})
    before = compiles()
    for n in SIZES:
        x = torch.randn(shape(n))
        assert (wrong := differ(compiled(x), f(x), rtol=1e-4, atol=1e-4)) == "", f"size {n}: {wrong}"
    assert compiles() - before <= 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str) -> None:
    f, shape = PROGRAMS[name]
    compiled = flashover.compile(f, fullgraph=True, options={"recompile_limit": 64})
    before = compiles()
    for n in SIZES:
        x = torch.randn(shape(n), requires_grad=True)
        (got,) = torch.autograd.grad(weighed(compiled(x)), x)
        (want,) = torch.autograd.grad(weighed(f(x)), x)
        assert got.stride() == want.stride(), f"size {n}"
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3, msg=lambda m, n=n: f"size {n}: {m}")
    assert compiles() - before <= 2


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str, last: bool) -> None:
    torch.manual_seed(0)
    module = MODULES[name]().eval()
    if last:
        module.to(memory_format=torch.channels_last)
    compiled = flashover.compile(module, options={"recompile_limit": 64})
    before = compiles()
    with torch.no_grad():
        for n in SIZES:
            x = torch.randn(rectangles(n))
            if last:
                x = x.to(memory_format=torch.channels_last)
            assert (wrong := differ(compiled(x), module(x), rtol=1e-3, atol=1e-4)) == "", f"size {n}: {wrong}"
    assert compiles() - before <= 2


@pytest.mark.parametrize("name", MODULES)
def test_training(name: str) -> None:
    torch.manual_seed(0)
    module = MODULES[name]()
    trained = Trained(module)
    before = compiles()
    for n in SIZES:
        trained.check(torch.randn(rectangles(n)), f"size {n}", 1e-4)
    assert compiles() - before <= 2


def test_amounts_of_padding_that_follow_from_sizes() -> None:
    compiled = flashover.compile(cover, dynamic=True)
    before = compiles()
    for n in range(2, 12):
        x = torch.randn(images(n), requires_grad=True)
        y = compiled(x)
        assert differ(y, cover(x)) == "", f"size {n}"
        (got,) = torch.autograd.grad(weighed(y), x)
        torch.testing.assert_close(got, torch.autograd.grad(weighed(cover(x)), x)[0])
    assert compiles() - before == 1


def test_a_backward_computes_with_sizes_that_its_operands_do_not_have() -> None:
    """Halved, 8 and 9 give one size; the gradient has the other."""
    compiled = flashover.compile(lambda x: torch.nn.functional.interpolate(x, scale_factor=0.5), dynamic=True)
    before = compiles()
    for n in (8, 9, 12, 13, 8):
        x = torch.randn(2, 3, n, n + 1, requires_grad=True)
        compiled(x).sum().backward()
        assert x.grad.shape == x.shape and x.grad.sum() == 6 * (n // 2) * ((n + 1) // 2)
    assert compiles() - before == 1
