"""Shape functions of the program's operators that ask for sizes from data, called while a program is captured."""

from __future__ import annotations

from typing import Any

import torch
from torch._library import fake_impl, simple_registry

from flashover import _C


class Context:
    """What `torch.library.get_ctx()` returns in such a function: torch's FakeImplCtx, over symbols of ours."""

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> torch.SymInt:
        if isinstance(min, torch.SymInt) or isinstance(max, torch.SymInt):
            raise ValueError(f"new_dynamic_size(min={min}, max={max}): numbers are expected, not symbols")
        if min < 0:
            raise ValueError(f"new_dynamic_size(min={min}): a size is not negative")
        return _C.new_data_size(min, max)

    def create_unbacked_symint(self, *, min: int = 2, max: int | None = None) -> torch.SymInt:
        return self.new_dynamic_size(min=min, max=max)


def call(name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The function registered for the operator `namespace::name`. Raises LookupError where there is none."""
    holder = simple_registry.singleton.find(name).fake_impl
    if holder.kernel is None:
        raise LookupError(f"{name} has no shape function")
    with fake_impl.set_ctx_getter(Context):
        return holder.kernel(*args, **kwargs)
