"""Tensor subclasses: how results of their classes are made again of plain tensors, and how autograd gets to them.

A wrapper is a tensor of a class with __torch_dispatch__ that tells what it is made of; its parts are plain tensors,
those of wrappers in it included. A form says how to make a wrapper of parts: a class, the names and the context of
__tensor_flatten__, size and stride, then for each name a part's number, a tensor that is there already, or a form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing

from flashover import _C


def _wrap(
    cls: Any, names: tuple[str, ...], context: Any, size: tuple[int, ...], stride: tuple[int, ...], *inner: Any
) -> Tensor:
    return cls.__tensor_unflatten__(dict(zip(names, inner, strict=True)), context, torch.Size(size), stride)


def as_class(cls: type[Tensor], tensor: Tensor) -> Tensor:
    return torch.Tensor.as_subclass(tensor, cls)


def as_parameter(tensor: Tensor, requires_grad: bool) -> Tensor:
    return torch.nn.Parameter(tensor, requires_grad)


def _is_wrapper(tensor: Tensor) -> bool:
    cls = type(tensor)
    return (
        cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        and hasattr(cls, "__tensor_flatten__")
        and hasattr(cls, "__tensor_unflatten__")
    )


def _own(wrapper: Any) -> tuple[Any, ...]:
    """Class, names, context, size and stride (these two are empty of jagged ones: their parts tell)."""
    names, context = wrapper.__tensor_flatten__()
    if wrapper.is_nested:
        return type(wrapper), tuple(names), context | {"requires_grad": False}, (), ()
    return type(wrapper), tuple(names), context, tuple(wrapper.size()), tuple(wrapper.stride())


def parts(wrapper: Any) -> tuple[Any, ...]:
    """A function, and its arguments, that make the wrapper."""
    with torch._C.DisableTorchFunctionSubclass():
        own = _own(wrapper)
        return (_wrap, *own, *(getattr(wrapper, name) for name in own[1]))


def leaves(wrapper: Any) -> tuple[Tensor, ...]:
    """Its parts, in order."""
    with torch._C.DisableTorchFunctionSubclass():
        inner = [getattr(wrapper, name) for name in wrapper.__tensor_flatten__()[0]]
    return tuple(leaf for part in inner for leaf in (leaves(part) if _is_wrapper(part) else (part,)))


def _like(wrapper: Any, given: list[Tensor]) -> Tensor:
    own = _own(wrapper)
    inner = [getattr(wrapper, name) for name in own[1]]
    return _wrap(*own, *[_like(part, given) if _is_wrapper(part) else given.pop(0) for part in inner])


def _without_grad(made: Tensor) -> Tensor:
    return made.requires_grad_(False) if made.requires_grad and made.is_leaf else made


def like(wrapper: Any, given: Sequence[Tensor]) -> Tensor:
    """One with these parts in the place of its own, that requires no grad."""
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        return _without_grad(_like(wrapper, list(given)))


def _form(tensor: Any, numbers: list[int]) -> Any:
    if _is_wrapper(tensor):
        own = _own(tensor)
        return (*own, *[_form(getattr(tensor, name), numbers) for name in own[1]])
    number = numbers.pop(0)
    return tensor if number < 0 else number


def form(tensor: Any, numbers: Sequence[int]) -> Any:
    """The form of a gradient, by part its number (-1: it is that very tensor)."""
    with torch._C.DisableTorchFunctionSubclass():
        return _form(tensor, list(numbers))


def _build(form: Any, given: Sequence[Tensor | None]) -> Any:
    if isinstance(form, int):
        return given[form]
    if isinstance(form, Tensor):
        return form
    own, inner = form[:5], form[5:]
    return _wrap(*own, *[_build(part, given) for part in inner])


def _take_apart(form: Any, gradient: Any, out: dict[int, Tensor]) -> None:
    """Raises ValueError for a gradient of another form."""
    if isinstance(form, Tensor):
        if gradient is not form:
            raise ValueError("it shares another tensor than the result does")
        return
    if isinstance(form, int):
        if _is_wrapper(gradient):
            raise ValueError(f"it holds a {type(gradient).__name__}")
        out[form] = gradient
        return
    cls, names, context = form[:3]
    if type(gradient) is not cls:
        raise ValueError(f"it is a {type(gradient).__name__}, not a {cls.__name__}")
    _, its_names, its_context, _, _ = _own(gradient)
    if context != its_context:
        raise ValueError(f"its context is {its_context!r}, not {context!r}")
    for name, part in zip(names, form[5:], strict=True):
        if name in its_names:
            _take_apart(part, getattr(gradient, name), out)
        elif not isinstance(part, Tensor):
            raise ValueError(f"it has no {name}")


class _Lead(torch.autograd.Function):
    """Leads a result of a class into the backward of what it is made of."""

    @staticmethod
    def forward(ctx: Any, made: list[Tensor], form: Any, *given: Tensor) -> Tensor:
        ctx.form, ctx.count = form, len(given)
        ctx.set_materialize_grads(False)
        return made[0]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if gradient is None:
            return (None, None, *[None] * ctx.count)
        out: dict[int, Tensor] = {}
        try:
            with torch._C.DisableTorchFunctionSubclass():
                _take_apart(ctx.form, gradient, out)
        except ValueError as e:
            raise RuntimeError(
                f"flashover: the gradient of a result of a compiled function is not like the result, as the compiled "
                f"backward takes it: {e}. Call the uncompiled function where such gradients come."
            ) from None
        return (None, None, *[out[i] for i in range(ctx.count)])


class _Join(torch.autograd.Function):
    """Makes a gradient of its parts, as a form says that is there when the forward has run."""

    @staticmethod
    def forward(ctx: Any, of: Tensor, forms: list[Any], given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        ctx.forms = forms
        ctx.set_materialize_grads(False)
        return given

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if all(g is None for g in gradients):
            return None, None, None
        with torch._C.DisableTorchFunctionSubclass():
            return _build(ctx.forms[0], gradients), None, None


def without_history(tensor: Tensor) -> Tensor:
    return tensor.detach()


def lead(made: Tensor, form: Any, *given: Tensor) -> Tensor:
    with torch.enable_grad():
        return _Lead.apply([_without_grad(made)], form, *given)


def fill(forms: list[Any], form: Any) -> list[Any]:
    forms.append(form)
    return forms


def join(of: Tensor, forms: list[Any], given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        return _Join.apply(of, forms, given)


def register() -> None:
    _C.mark(return_and_correct_aliasing, "allow")  # (bookkeeping on the wrappers)
