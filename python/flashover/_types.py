"""What a type checker sees of the public functions: a compiled function keeps its signature, a module its class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypedDict, TypeVar, overload

import torch

if TYPE_CHECKING:
    from flashover._explanation import Explanation
    from flashover._live import Stats, Version

P = ParamSpec("P")
Rest = ParamSpec("Rest")
R = TypeVar("R")
Result = TypeVar("Result", covariant=True)
Made = TypeVar("Made")
First = TypeVar("First")
M = TypeVar("M", bound=torch.nn.Module)
C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])


class CompileArguments(TypedDict, total=False):
    """What compile() takes beside the model."""

    fullgraph: bool
    dynamic: bool | None
    backend: str | Callable[..., Any]
    mode: str | None
    options: Mapping[str, Any] | None
    disable: bool


class Compiled(Protocol[P, Result]):
    """A compiled function: it is called and bound to instances as the function is, and tells what it holds."""

    __name__: str
    __qualname__: str
    __wrapped__: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Result: ...
    @overload
    def __get__(self, instance: None, owner: Any = None, /) -> Compiled[P, Result]: ...
    @overload
    def __get__(
        self: Compiled[Concatenate[First, Rest], Made], instance: First, owner: Any = None, /
    ) -> Callable[Rest, Made]: ...
    def explain(self) -> Explanation:
        """What became of its calls so far."""

    def stats(self) -> Stats:
        """Counts and times of its calls so far."""

    def source(self) -> str:
        """The source of its kernels; compile with options={"keep_text": True}."""

    @property
    def versions(self) -> list[Version]:
        """What it was compiled for, oldest first."""


class Decorator(Protocol):
    """What compile() without a model returns: the type of what it decorates is kept."""

    @overload
    def __call__(self, model: type[C], /) -> type[C]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, model: M, /) -> M: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, model: staticmethod[P, R], /) -> staticmethod[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, model: classmethod[C, P, R], /) -> classmethod[C, P, R]: ...
    @overload
    def __call__(self, model: Callable[P, R], /) -> Compiled[P, R]: ...


class Keeping(Protocol):
    """A decorator that returns what it was given."""

    def __call__(self, fn: F, /) -> F: ...
