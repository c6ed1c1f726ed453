"""torch.compile(model, backend="flashover"): torch's own capture in front, Flashover behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule


def backend(
    graph_module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """A torch.compile backend: the graph's module, compiled on its first call."""
    import flashover
    from flashover._compiled_module import callable_of

    _LazyGraphModule.force_recompile(graph_module)  # else its first call, which is captured, writes its Python code
    # A plain callable: torch would call a module's class with the module again.
    return callable_of(flashover.compile(graph_module, mode=mode, options=options))
