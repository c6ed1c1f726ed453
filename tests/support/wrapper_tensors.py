"""Tensor subclasses as libraries write them: weights of eight bits, a pair of tensors, one with a scale."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing

aten = torch.ops.aten


class Int8Weight(Tensor):
    """A matrix as int8 numbers and a scale a row; linear() is a class function, as in torchao."""

    @staticmethod
    def __new__(cls, data: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Int8Weight:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=dtype, device=data.device)

    def __init__(self, data: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> None:
        self.int_data = data
        self.scale = scale

    @classmethod
    def of(cls, weight: Tensor) -> Int8Weight:
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale, weight.dtype)

    def dequantize(self) -> Tensor:
        return self.int_data.to(self.scale.dtype) * self.scale

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["int_data", "scale"], [self.dtype]

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Int8Weight:
        return cls(inner["int_data"], inner["scale"], context[0])

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Int8Weight({tuple(self.shape)})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            x, w, bias = (*args, kwargs.get("bias"))[:3]
            if isinstance(w, Int8Weight):
                y = (x @ w.int_data.to(x.dtype).t()) * w.scale.reshape(-1)
                return y if bias is None else y + bias
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        kwargs = kwargs or {}
        if func is aten.detach.default:
            w = args[0]
            return return_and_correct_aliasing(func, args, kwargs, cls(w.int_data, w.scale, w.dtype))
        if func is aten.clone.default:
            w = args[0]
            return cls(w.int_data.clone(), w.scale.clone(), w.dtype)
        plain = [a.dequantize() if isinstance(a, Int8Weight) else a for a in args]
        return func(*plain, **kwargs)


class DispatchedInt8Weight(Int8Weight):
    """The same without a function of the class: operators come by way of the dispatcher."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is aten.t.default:
            w = args[0]
            return DispatchedInt8Weight(w.int_data.t(), w.scale.t(), w.dtype)
        return super().__torch_dispatch__(func, types, args, kwargs)


class Scaled(Tensor):
    """A tensor and a number; what is computed is scaled by it."""

    @staticmethod
    def __new__(cls, inner: Tensor, factor: float) -> Scaled:
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner: Tensor, factor: float) -> None:
        self.inner = inner
        self.factor = factor

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["inner"], {"factor": self.factor}

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: Any, size: Any, stride: Any) -> Scaled:
        return Scaled(inner["inner"], context["factor"])

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Scaled({self.inner!r}, {self.factor})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        kwargs = kwargs or {}
        factor = next(a.factor for a in args if isinstance(a, Scaled))
        plain = [a.inner if isinstance(a, Scaled) else a for a in args]
        out = func(*plain, **kwargs)
        if func._schema.name.endswith("_"):
            return args[0]
        return Scaled(out * factor if func is aten.mul.Tensor else out, factor) if isinstance(out, Tensor) else out
