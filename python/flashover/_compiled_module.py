"""Compiled modules: what flashover.compile returns for an nn.Module.

A compiled module is an instance that shares the `__dict__` of its original and keeps its compiled callable in a slot of
its own. All compiled modules of one class share one class, which CompiledClass seals: whatever is done with that class
(call it, derive from it, ask isinstance, patch it) is done with the original class. So a compiled module is its own
instance and nothing else; every other module that is made from it or from its class is an ordinary one.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import inspect
import sys
import threading
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from flashover import _C
from flashover import options as options_table

PREFIX = "_orig_mod."  # of torch.compile's keys in a state_dict
SLOT = "_flashover_callable"
_DICT = torch.nn.Module.__dict__["__dict__"]  # the real ones, whatever a class makes of the names
_CLASS_DICT: Any = type.__dict__["__dict__"]

# By the id of the original class; a class that is gone has no entry, since its compiled class kept it alive.
_classes: weakref.WeakValueDictionary[int, CompiledClass] = weakref.WeakValueDictionary()


def original_class(cls: Any) -> Any:
    """The class that a compiled module's class was made for; any other class as it is."""
    return cls._flashover_class if isinstance(cls, CompiledClass) else cls


def _parts(module: torch.nn.Module, seen: set[int]) -> Iterator[torch.nn.Module]:
    """module.modules(), for modules without a hash, too."""
    if id(module) not in seen:
        seen.add(id(module))
        yield module
        for part in module._modules.values():
            if part is not None:
                yield from _parts(part, seen)


def is_uninitialized(module: torch.nn.Module) -> bool:
    """Whether the first call, by hooks (torch.nn.modules.lazy), makes a parameter or a buffer in it or gives it its
    size."""
    return any(
        (isinstance(part, LazyModuleMixin) and hasattr(part, "_initialize_hook"))
        or any(map(torch.nn.parameter.is_lazy, (*part._parameters.values(), *part._buffers.values())))
        for part in _parts(module, set())
    )


class _Asked(threading.local):
    """The questions `issubclass(a, b)` that this thread is about to answer by the original class of b."""

    def __init__(self) -> None:
        self.pairs: set[tuple[int, int]] = set()


_asked = _Asked()


class CompiledClass(type):
    """The metaclass of compiled modules' classes: they stand for the original class."""

    _flashover_class: type

    def _get_dict(cls) -> Mapping[str, Any]:
        """What vars() gives. torch.compile gets the real one: what it finds there it guards, past this property."""
        asks = sys._getframe(1).f_globals.get("__name__", "")
        return _CLASS_DICT.__get__(cls if asks.startswith("torch._dynamo") else cls._flashover_class)

    __dict__ = property(_get_dict)  # type: ignore[assignment]

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> Any:
        """A class derived from a compiled module's class derives from the original class."""
        real = tuple(original_class(b) for b in bases)
        made_by = types.prepare_class(name, real)[0]
        if "__module__" not in namespace and made_by.__new__ is type.__new__:  # which takes the name of this module
            namespace = {**namespace, "__module__": sys._getframe(1).f_globals.get("__name__")}
        return made_by(name, real, namespace, **kwargs)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._flashover_class(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls._flashover_class)

    def __subclasscheck__(cls, subclass: type) -> bool:
        """The original class may ask its subclasses in turn, as those of abc do: this one has nothing to add then."""
        pair = id(cls), id(subclass)
        if pair in _asked.pairs:
            return False
        _asked.pairs.add(pair)
        try:
            return issubclass(subclass, cls._flashover_class)
        finally:
            _asked.pairs.discard(pair)

    def __setattr__(cls, name: str, value: Any) -> None:
        setattr(cls._flashover_class, name, value)

    def __delattr__(cls, name: str) -> None:
        delattr(cls._flashover_class, name)

    def __eq__(cls, other: object) -> bool:
        return cls is other or cls._flashover_class == other

    def __hash__(cls) -> int:
        return hash(cls._flashover_class)

    @property
    def __signature__(cls) -> inspect.Signature:
        return inspect.signature(cls._flashover_class)

    def __reduce__(cls) -> Any:
        return original_class, (cls._flashover_class,)


@functools.cache
def _metaclass_over(meta: type) -> type:
    """CompiledClass for the classes of a metaclass of the program's."""
    if meta is type:
        return CompiledClass
    made = type.__new__(type, "CompiledClass", (CompiledClass, meta), {"__module__": __name__})
    copyreg.pickle(made, CompiledClass.__reduce__)  # type: ignore[arg-type]
    return made


copyreg.pickle(CompiledClass, CompiledClass.__reduce__)  # type: ignore[arg-type]


def callable_of(module: Any) -> Any:
    """The compiled callable of a compiled module; None for anything else."""
    cls = type(module)
    if not isinstance(cls, CompiledClass):
        return None
    try:
        return _CLASS_DICT.__get__(cls)[SLOT].__get__(module, cls)
    except AttributeError:  # one that waits for its original (_empty)
        return None


def original_of(module: Any) -> Any:
    """The original of a compiled module; any other object as it is."""
    compiled = callable_of(module)
    return module if compiled is None else compiled.__bound_self__


def _read_by_a_tracer() -> bool:
    """torch.compile's capture, Flashover's and torch.jit.script look into a forward instead of calling it."""
    return torch.compiler.is_compiling() or not getattr(torch.jit._script, "_TOPLEVEL", True)


class _Forward:
    """`forward` of a compiled module is compiled, too; it runs no hooks, as that of an ordinary module does not."""

    def __get__(self, module: Any, cls: Any) -> Any:
        if module is None:
            return cls._flashover_class.forward
        if torch.compiler.is_compiling():  # torch.compile reads these lines: nothing in them that it knows not
            return module._flashover_callable.__wrapped__.forward
        original = original_of(module)
        forward = original.forward if original is not module else super(CompiledModule, module).forward
        if original is module or _read_by_a_tracer():
            return forward
        if not (inspect.ismethod(forward) and forward.__self__ is original and inspect.isfunction(forward.__func__)):
            return forward
        compiled = callable_of(module)
        made = compiled.__dict__.get("_flashover_forward")
        if made is None or made.__wrapped_function__ is not forward.__func__:
            made = compiled._flashover_settings.compile_method(forward)
            compiled._flashover_forward = made
        return made


class _Original:
    """`_orig_mod`, as torch.compile calls it. (Not a property: torch.jit.script compiles those.)"""

    def __get__(self, module: Any, cls: Any) -> Any:
        original = original_of(module)
        if module is not None and original is module:
            raise AttributeError("_orig_mod")
        return self if module is None else original

    def __set__(self, module: Any, value: Any) -> None:
        raise AttributeError("the original of a compiled module cannot be exchanged")


class _Slot:
    """A slot of the original class: its content is the original's."""

    def __init__(self, member: Any) -> None:
        self.member = member
        self.__doc__ = member.__doc__

    def __get__(self, module: Any, cls: Any) -> Any:
        return self.member if module is None else self.member.__get__(original_of(module))

    def __set__(self, module: Any, value: Any) -> None:
        self.member.__set__(original_of(module), value)

    def __delete__(self, module: Any) -> None:
        self.member.__delete__(original_of(module))


class CompiledModule:
    """The part of a compiled module's class that is not its original's."""

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """An ordinary module: only compile_module makes compiled ones."""
        real = original_class(cls)
        return real.__new__(real, *args, **kwargs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Stops here: the class made for a compiled module is nothing to be registered by the model's own classes."""

    forward = _Forward()

    _orig_mod = _Original()

    def _get_class(self) -> type:
        original = original_of(self)
        return original_class(type(self)) if original is self else original.__class__

    def _set_class(self, cls: type) -> None:
        original = original_of(self)
        before = original.__class__
        original.__class__ = original_class(cls)
        try:
            follow_original(self)
        except BaseException:
            original.__class__ = before
            raise

    __class__ = property(_get_class, _set_class)  # type: ignore[assignment]

    def _get_dict(self) -> dict[str, Any]:
        return _DICT.__get__(original_of(self))

    def _set_dict(self, value: dict[str, Any]) -> None:
        _DICT.__set__(original_of(self), value)
        _DICT.__set__(self, value)

    __dict__ = property(_get_dict, _set_dict)  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name == SLOT:  # one that waits for its original is called as an instance of the original class
            return types.MethodType(type(self)._flashover_class.__call__, self)
        return getattr(self, name) if _follow(self) else super().__getattr__(name)  # type: ignore[misc]

    def __setattr__(self, name: str, value: Any) -> None:
        _follow(self)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        _follow(self)
        super().__delattr__(name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        original = original_of(self)
        if original is not self:  # made empty first, since the original may hold its compiled module
            made = _empty, (_picklable_base(original_class(type(self))),)
            return *made, (original, callable_of(self)._flashover_settings), None, None, _fill_from
        real = original_class(type(self))
        function, args, *rest = super().__reduce_ex__(protocol)
        return function, tuple(real if a is type(self) else a for a in args), *rest

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        original = original_of(self)
        if original is self:
            own = getattr(original_class(type(self)), "__deepcopy__", None)
            return own(self, memo) if own else copy._reconstruct(self, memo, *self.__reduce_ex__(4))  # type: ignore[attr-defined]
        memo[id(self)] = made = _empty(original_class(type(self)))
        try:
            _fill(made, copy.deepcopy(original, memo), callable_of(self)._flashover_settings)
        except BaseException:
            del memo[id(self)]
            raise
        return made

    def __copy__(self) -> Any:
        original = original_of(self)
        if original is self:
            own = getattr(original_class(type(self)), "__copy__", None)
            return own(self) if own else copy._reconstruct(self, None, *self.__reduce_ex__(4))  # type: ignore[attr-defined]
        return compile_module(copy.copy(original), callable_of(self)._flashover_settings)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        original, compiled = original_of(self), callable_of(self)
        if original is self:
            return super().state_dict(*args, **kwargs)  # type: ignore[misc]
        if options_table.value(compiled._flashover_settings.values, "orig_mod_prefix") == "True":
            kwargs |= zip(("destination", "prefix", "keep_vars"), args, strict=False)
            args, kwargs["prefix"] = (), kwargs.get("prefix", "") + PREFIX
        return original.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Takes keys with and without torch.compile's prefix."""
        original = original_of(self)
        if original is self:
            return super().load_state_dict(state_dict, *args, **kwargs)  # type: ignore[misc]
        if isinstance(state_dict, Mapping) and _has_prefix(original, state_dict, ""):
            metadata = getattr(state_dict, "_metadata", None)
            state_dict = dict(state_dict)
            _drop_prefix(state_dict, "")
            if metadata is not None:
                state_dict = torch.nn.modules.module.OrderedDict(state_dict)
                state_dict._metadata = type(
                    metadata
                )(  # type: ignore[attr-defined]
                    (k.removeprefix(PREFIX[:-1]).removeprefix("."), v) for k, v in metadata.items()
                )
        return original.load_state_dict(state_dict, *args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """The same where a module that holds this one is loaded: then the keys are those of that one's own copy."""
        if _has_prefix(self, state_dict, prefix):
            _drop_prefix(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)  # type: ignore[misc]


def _has_prefix(module: torch.nn.Module, state_dict: Mapping[str, Any], prefix: str) -> bool:
    own = PREFIX[:-1] in module._modules  # a child of the program's of that name
    return not own and any(isinstance(k, str) and k.startswith(prefix + PREFIX) for k in state_dict)


def _drop_prefix(state_dict: dict[str, Any], prefix: str) -> None:
    """Keys that are there in both forms stay as they are: the longer ones are unexpected then."""
    for key in [k for k in state_dict if k.startswith(prefix + PREFIX)]:
        short = prefix + key[len(prefix) + len(PREFIX) :]
        if short not in state_dict:
            state_dict[short] = state_dict.pop(key)


def follow_original(module: Any) -> None:
    """A compiled module after its original got another class or another dict."""
    original = original_of(module)
    _C.change_class(module, _class_for(type(original)))
    _DICT.__set__(module, _DICT.__get__(original))


def _follow(module: Any) -> bool:
    original = original_of(module)
    if type(original) is type(module)._flashover_class and _DICT.__get__(original) is _DICT.__get__(module):
        return False
    if original is module:
        return False
    follow_original(module)
    return True


def _slots_of(cls: type) -> dict[str, _Slot]:
    """For the slots that attribute look-ups find, not those that a derived class hides."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        found |= vars(base)
    return {name: _Slot(member) for name, member in found.items() if inspect.ismemberdescriptor(member)}


def _call_of(cls: Any) -> Any:
    """What the class's __call__ says. Calls of instances do not take this way (_C.route)."""

    def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._flashover_callable(*args, **kwargs)

    return functools.wraps(cls.__call__)(__call__)


def _annotations_of(cls: Any) -> dict[str, Any]:
    """From Python 3.14 on a class has code that makes them, which is not run here, or nothing."""
    own = vars(cls)
    if "__annotations__" in own or sys.version_info < (3, 14):
        return {"__annotations__": own.get("__annotations__", {})}
    annotate = own.get("__annotate_func__")
    return {} if annotate is None else {"__annotate_func__": annotate}


def _class_for(cls: Any) -> Any:
    """The class of all compiled modules whose originals are of this class."""
    cls = original_class(cls)
    made = _classes.get(id(cls))
    if made is None:
        namespace = {
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
            **_annotations_of(cls),
            "__slots__": (SLOT,),
            "__dict__": CompiledModule.__dict__["__dict__"],  # else CPython puts its own there
            "_flashover_class": cls,
            **_slots_of(cls),
        }
        if not issubclass(cls, torch.jit.ScriptModule):  # torch.compile runs torch's own __call__ of those as it is
            namespace["__call__"] = _call_of(cls)
        made = type.__new__(_metaclass_over(type(cls)), cls.__name__, (CompiledModule, cls), namespace)
        _C.route(made)
        _classes[id(cls)] = made
    return made


def _empty(cls: type) -> Any:
    """A compiled module that gets its original later, of this class or of one derived from it with no more slots."""
    return _C.empty_module(_class_for(cls))


def _picklable_base(cls: Any) -> type:
    """The least derived class with this memory layout: some classes cannot be pickled, only their modules."""
    bases = [b for b in cls.__mro__ if issubclass(b, torch.nn.Module) and b.__basicsize__ == cls.__basicsize__]
    return bases[-1]


def _fill(module: Any, original: Any, settings: Any, keep_text: bool = False) -> None:
    _C.change_class(module, _class_for(type(original)))
    name = type(original).__name__
    compiled = settings.callable_for(None, original, through_call=True, name=name, keep_text=keep_text)
    compiled.__doc__ = type(original).__call__.__doc__
    compiled._flashover_settings = settings
    compiled.__wrapped__ = original
    _DICT.__set__(module, _DICT.__get__(original))
    _CLASS_DICT.__get__(type(module))[SLOT].__set__(module, compiled)


def _fill_from(module: Any, state: tuple[Any, Any]) -> None:
    _fill(module, *state)


def compile_module(module: torch.nn.Module, settings: Any, keep_text: bool = False) -> Any:
    made = _empty(type(module))
    _fill(made, module, settings, keep_text)
    return made
