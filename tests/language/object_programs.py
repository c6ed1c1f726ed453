"""Classes of all kinds and their objects, each program a function of a tensor, for test_language.py."""
# ruff: noqa: E501, UP042 - the old ways of writing things are under test, too

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from programs import Programs

Tensor = torch.Tensor
PROGRAMS = program = Programs()


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __add__(self, o: Point) -> Point:
        return Point(self.x + o.x, self.y + o.y)

    def __mul__(self, k: Any) -> Point:
        return Point(self.x * k, self.y * k)

    __rmul__ = __mul__

    def __eq__(self, o: object) -> bool:
        return isinstance(o, Point) and self.x == o.x and self.y == o.y

    def __hash__(self) -> int:
        return hash((self.x, self.y))

    def __lt__(self, o: Point) -> bool:
        return self.x < o.x

    def __repr__(self) -> str:
        return f"Point({self.x}, {self.y})"

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> Any:
        return (self.x, self.y)[i]

    def __iter__(self) -> Iterator[Any]:
        yield self.x
        yield self.y

    def __contains__(self, v: Any) -> bool:
        return v in (self.x, self.y)

    def __bool__(self) -> bool:
        return bool(self.x or self.y)

    def __call__(self, t: Tensor) -> Tensor:
        return t * self.x + self.y

    def __neg__(self) -> Point:
        return Point(-self.x, -self.y)


class Countdown:
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Countdown:
        return self

    def __next__(self) -> int:
        if self.n <= 0:
            raise StopIteration
        self.n -= 1
        return self.n + 1


class OwnError(Exception):
    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@program
def operators_of_classes(x: Tensor) -> Any:
    p = Point(1, 2) + 2 * Point(3, 4) * 1
    a, b = p
    flags = (
        p == Point(7, 10),
        p != Point(0, 0),
        bool(Point(0, 0)),
        7 in p,
        len(p),
        p[1],
        p < Point(9, 0),
        hash(p) == hash(Point(7, 10)),
    )
    return p(x), a, b, flags, repr(-p), sorted([Point(2, 0), Point(1, 0)])[0].x, {p: 1}[Point(7, 10)]


class Typed:
    """A data descriptor, a property, static and class methods, slots and __getattr__."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "_" + name

    def __get__(self, o: Any, owner: type) -> Any:
        return self if o is None else getattr(o, self.name, 10)

    def __set__(self, o: Any, value: Any) -> None:
        setattr(o, self.name, value * 2)


class Everything:
    field = Typed()
    count = 0

    def __init__(self, k: int) -> None:
        self.k = k

    @property
    def double(self) -> int:
        return self.k * 2

    @double.setter
    def double(self, v: int) -> None:
        self.k = v // 2

    @staticmethod
    def static(x: Any) -> Any:
        return x + 1

    @classmethod
    def make(cls, k: int) -> Everything:
        return cls(k + 1)

    @functools.cached_property
    def cached(self) -> int:
        return self.k + 1000

    def __getattr__(self, name: str) -> Any:
        if name.startswith("auto_"):
            return int(name[5:])
        raise AttributeError(name)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


@program
def attributes_of_classes(x: Tensor) -> Any:
    e = Everything.make(3)
    before = e.field
    e.field = 5
    e.double = 20
    s = Slotted(x, 2)
    s.b += 1
    return (
        s.a * s.b, before, e.field, e.k, e.double, e.static(1), Everything.static(2), e.cached, e.cached, e.auto_7,
        hasattr(e, "nope"), getattr(e, "nope", "default"), isinstance(e, Everything), Everything.field.name,
    )  # fmt: skip


class A:
    def f(self, x: Any) -> Any:
        return x + 1


class B(A):
    def f(self, x: Any) -> Any:
        return super().f(x) * 2


class C(A):
    def f(self, x: Any) -> Any:
        return super().f(x) - 3


class D(B, C):
    def f(self, x: Any) -> Any:
        return super().f(x) + 10


@program
def super_along_the_mro(x: Tensor) -> Any:
    return D().f(x), [c.__name__ for c in D.__mro__], issubclass(D, C), type(D()).__name__


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self) -> Any: ...

    @classmethod
    def __subclasshook__(cls, c: type) -> Any:
        return NotImplemented


class Square(Shape):
    def __init__(self, side: Any) -> None:
        self.side = side

    def area(self) -> Any:
        return self.side**2


@program
def abstract_classes(x: Tensor) -> Any:
    return Square(x).area(), isinstance(Square(1), Shape), isinstance(1, Shape)


@program
def class_made_inside(x: Tensor) -> Any:
    class Local(A):
        k = 3

        def g(self, t: Tensor) -> Tensor:
            return self.f(t) * self.k

    return Local().g(x), Local.__name__, isinstance(Local(), A)


class Meta(type):
    registry: typing.ClassVar[dict[str, type]] = {}

    def __call__(cls, *args: Any) -> Any:
        made = super().__call__(*args)
        made.tag = cls.__name__
        return made


class WithMeta(metaclass=Meta):
    def __init__(self, v: Any) -> None:
        self.v = v


@program
def metaclass_call(x: Tensor) -> Any:
    w = WithMeta(x)
    return w.v * 2, w.tag


@dataclasses.dataclass
class Config:
    size: int = 3
    names: list[str] = dataclasses.field(default_factory=list)
    scale: float = 2.0

    def __post_init__(self) -> None:
        self.total = self.size * 2


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    a: int
    b: str = "z"


@program
def dataclass_instances(x: Tensor) -> Any:
    c = Config(4)
    d = dataclasses.replace(c, scale=3.0)
    c.names.append("n")
    return (
        x * d.scale + c.total, dataclasses.asdict(c), [f.name for f in dataclasses.fields(c)], Key(1) == Key(1), Key(1) < Key(2),
        {Key(1): 5}[Key(1)], c != d, dataclasses.is_dataclass(c),
    )  # fmt: skip


class Pair(NamedTuple):
    left: Any
    right: Any = 7

    def swap(self) -> Pair:
        return Pair(self.right, self.left)


Old = collections.namedtuple("Old", "a b")


@program
def named_tuples(x: Tensor) -> Any:
    p = Pair(x)
    q = p._replace(left=x + 1)
    a, b = Old(1, 2)
    return q.swap().right * q.right, q._asdict()["right"], Pair._fields, a + b, Old._make([3, 4]), p[1], len(p)


class Color(enum.Enum):
    RED = 1
    BLUE = 2

    @property
    def weight(self) -> int:
        return self.value * 10


class Flag(enum.IntFlag):
    A = 1
    B = 2


class Mode(str, enum.Enum):
    FAST = "fast"
    SLOW = "slow"


@program
def enums(x: Tensor) -> Any:
    c = Color.BLUE
    k = {Color.RED: 1, Color.BLUE: 2}[c]
    return (
        x * k * c.weight,
        c is Color(2),
        c.name,
        Color["RED"].value,
        [m.name for m in Color],
        bool(Flag.A & (Flag.A | Flag.B)),
        Mode("fast") == "fast",
        Mode.SLOW.value,
    )
