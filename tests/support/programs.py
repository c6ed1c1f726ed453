"""Programs under test, collected where they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Programs(list[Callable[..., Any]]):
    """A list that is the decorator of what is in it."""

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        self.append(f)
        return f
