"""torch.compile(model, backend="flashover"): torch's own capture in front, Flashover behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


def backend(
    graph_module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """A torch.compile backend: the graph's module, compiled on its first call."""
    import flashover

    compiled = flashover.compile(graph_module, mode=mode, options=options)
    return type(
        compiled
    )._flashover_callable  # a plain callable: torch would call a module's class with the module again
