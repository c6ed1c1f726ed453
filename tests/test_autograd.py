"""What torch.autograd promises, kept by compiled functions: one program for each behaviour, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import flashover

pytestmark = pytest.mark.timeout(180)


def compiled(f: Any, fullgraph: bool = True) -> Any:
    return flashover.compile(f, fullgraph=fullgraph, options={"verify": True})


def test_gradients_of_results_go_when_they_have_been_read() -> None:
    gone: list[bool] = []
    watched: list[StorageWeakRef] = []

    @torch.library.custom_op("flashover_test::see_what_lives", mutates_args=())
    def see_what_lives(x: torch.Tensor) -> torch.Tensor:
        gone.append(watched[-1].expired())
        return x.clone()

    see_what_lives.register_fake(torch.empty_like)

    class Seen(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return see_what_lives(see_what_lives(g.sin()))

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            g = g * 2
            watched.append(StorageWeakRef(g.untyped_storage()))
            return g

    x = torch.randn(64, 64, requires_grad=True)
    Watched.apply(compiled(Seen.apply)(x)).sum().backward()
    assert gone == [True, True]
