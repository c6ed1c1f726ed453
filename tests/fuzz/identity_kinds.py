"""Kinds of modules for the compiled-module identity matrix: each makes equal modules again and again."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Kind:
    """`make()` gives a module, equal to all others it gave; `again(cls)` makes one from its class; `x` is an input."""

    name: str
    make: Callable[[], nn.Module]
    again: Callable[[Any], nn.Module]
    x: torch.Tensor
    big: bool = False


class Lists(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))
        self.named = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Tanh()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return self.named["b"](self.named["a"](x))


class Slots(nn.Module):
    __slots__ = ("__hidden", "extra", "unset")

    def __init__(self, extra: float = 3.0) -> None:
        super().__init__()
        self.extra, self.__hidden = extra, 2.0
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x) * self.extra + self.__hidden


class MoreSlots(Slots):
    __slots__ = ("extra", "more")

    def __init__(self) -> None:
        super().__init__(4.0)
        self.more = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.more


class Base(nn.Module, abc.ABC):
    @abc.abstractmethod
    def scale(self) -> float: ...

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x) * self.scale()


class Concrete(Base):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def scale(self) -> float:
        return 2.0


class Registry(type):
    """A metaclass that counts what it makes and hands out arguments."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        made.from_metaclass = True
        return made


class Registered(nn.Module, metaclass=Registry):
    kinds: dict[str, type] = {}  # noqa: RUF012

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Registered.kinds[cls.__name__] = cls

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x) if self.from_metaclass else x


class OwnCall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def __call__(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return super().__call__(x) * scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x)


class Odd(nn.Module):
    """Writes its own special methods, and state of its own in a call."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.lin = nn.Linear(width, 4)
        self.calls = 0
        self.register_buffer("seen", torch.zeros(()))

    def __getattr__(self, name: str) -> Any:
        if name == "dynamic":
            return 2.0
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__("_" + name if name == "private" else name, value)

    def __eq__(self, other: object) -> bool:
        return type(other) == type(self) and self.lin.in_features == other.lin.in_features  # noqa: E721

    def __hash__(self) -> int:
        return hash((type(self), self.lin.in_features))

    def __len__(self) -> int:
        return 7

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = type(self)(self.lin.in_features)
        memo[id(self)] = made
        made.__dict__ = copy.deepcopy(self.__dict__, memo)
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen += 1
        return self.lin(x) * self.dynamic + self.seen


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.tied = self.lin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tied(self.norm(self.lin(x)))

    def smaller(self) -> nn.Module:
        return self.__class__()


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(self.inner(x))


def hook(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
    return out + 1


def hooked() -> nn.Module:
    made = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    made.register_forward_hook(hook)
    made.register_forward_pre_hook(double_input)
    return made


def double_input(module: nn.Module, args: Any) -> Any:
    return (args[0] * 2,)


def sequence(cls: Any = nn.Sequential) -> nn.Module:
    return cls(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2), nn.Tanh())


def traced() -> nn.Module:
    return torch.fx.symbolic_trace(sequence())


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(4), nn.ReLU())


def parametrized() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertModel(config)


def bert_again(cls: Any) -> nn.Module:
    return cls(bert().config)


def resnet() -> nn.Module:
    import timm

    return timm.create_model("resnet10t", num_classes=3)


def _seeded(make: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def made(*args: Any) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return make(*args)

    return made


def _kinds() -> dict[str, Kind]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(3, 4, generator=generator)
    table = [
        Kind("sequential", sequence, sequence, x),
        Kind("lists", Lists, lambda cls: cls(2), x),
        Kind("slots", Slots, lambda cls: cls(5.0), x),
        Kind("more_slots", MoreSlots, lambda cls: cls(), x),
        Kind("abstract", Concrete, lambda cls: cls(), x),
        Kind("metaclass", Registered, lambda cls: cls(), x),
        Kind("own_call", OwnCall, lambda cls: cls(), x),
        Kind("odd", Odd, lambda cls: cls(4), x),
        Kind("norms", Norms, lambda cls: cls(), x),
        Kind("scripted", Scripted, lambda cls: cls(), x),
        Kind("hooked", hooked, sequence, x),
        Kind("lazy", lazy, sequence, x),
        Kind("linear", lambda: nn.Linear(4, 4), lambda cls: cls(4, 5), x),
        Kind("parametrized", parametrized, lambda cls: cls(4, 5), x),
        Kind("graph_module", traced, lambda cls: cls(nn.Module(), torch.fx.Graph()), x),
        Kind("script_module", lambda: torch.jit.script(sequence()), lambda cls: cls(), x),
        Kind("bert", bert, bert_again, torch.arange(10).view(2, 5), big=True),
        Kind("resnet", resnet, lambda cls: resnet(), torch.randn(2, 3, 32, 32, generator=generator), big=True),
    ]  # fmt: skip
    return {k.name: Kind(k.name, _seeded(k.make), _seeded(k.again), k.x, k.big) for k in table}


KINDS = _kinds()
