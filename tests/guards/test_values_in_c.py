"""Objects whose state lies in C: what special methods and getters of C read of them is in no attribute."""

from __future__ import annotations

import ctypes
import datetime
import decimal
import functools
import importlib.util
import operator
import re
import struct
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import flashover


class Price(decimal.Decimal):
    pass


class Stamp(datetime.datetime):
    pass


class Span(datetime.timedelta):
    pass


class Triple(ctypes.Array[Any]):
    _type_ = ctypes.c_int
    _length_ = 3


class Count(int):
    pass


class Bytes(bytes):
    pass


MAKE: dict[str, Callable[[int], Any]] = {
    "decimal": decimal.Decimal,
    "Price": Price,
    "date": lambda i: datetime.date(2000 + i, 1, 1),
    "time": datetime.time,
    "timedelta": datetime.timedelta,
    "Stamp": lambda i: Stamp(2000 + i, 1, 1),
    "Span": Span,
    "Triple": lambda i: Triple(i, i, i),
    "datetime64": lambda i: np.datetime64(f"2000-01-0{i}"),
    "int64": np.int64,
    "range": range,
    "Count": Count,
    "Bytes": lambda i: Bytes(b"x" * i),
    "partial": lambda i: functools.partial(pow, i),
    "union": lambda i: int | str if i == 1 else int | float,
    "itemgetter": operator.itemgetter,
    "Struct": lambda i: struct.Struct("i" * i),
    "match": lambda i: re.match("a*", "a" * i),
    "pattern": lambda i: re.compile(f"(?P<n{i}>x)"),
}
READ: dict[str, Callable[[Any], Any]] = {
    "hash": hash,
    "str": str,
    "repr": repr,
    "format": lambda o: f"{o}",
    "percent": lambda o: "%s" % (o,),  # noqa: UP031
    "bool": bool,
    "len": len,
    "int": int,
    "float": float,
    "round": round,
    "equal": lambda o: o == 3,
    "list": list,
    "state": lambda o: o.__reduce_ex__(2)[1],
    "groupindex": lambda o: dict(o.groupindex),
    "year": lambda o: o.year,
    "key": lambda o: max([(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)], key=o),
    "find": lambda o: o.sub("y", "n1x2x"),
    "call": lambda o: o((1, 2, 3, 4)),
    "size": lambda o: (o.size, o.format),
    "end": lambda o: (o.end(), o.span()),
}


def outcome(f: Callable[[], Any]) -> str:
    try:
        return repr(f())
    except Exception as error:
        return type(error).__name__


@pytest.mark.filterwarnings("ignore:flashover")
@pytest.mark.parametrize("kind", MAKE)
def test_each_object_has_its_own_value(kind: str) -> None:
    x = torch.ones(2)
    read_any = set()
    for name, read in READ.items():

        def f(o: Any, x: torch.Tensor, read: Callable[[Any], Any] = read) -> Any:
            y = x + 1
            return read(o), y

        flashover.reset()
        fast = flashover.compile(f)
        for i in (3, 1, 2, 3, 3, 1):  # (the memory of one that is gone may be the next one's)
            o = MAKE[kind](i)
            want = outcome(lambda o=o, read=read: read(o))  # type: ignore[misc]
            assert outcome(lambda o=o, fast=fast: fast(o, x)[0]) == want, (name, i)  # type: ignore[misc]
            read_any.add(want)
    assert len(read_any) > 3


CACHED = r"""
#include <Python.h>

typedef struct { PyObject_HEAD PyObject* function; } Cached;

static PyObject* cached(PyObject* self, PyObject* o, PyObject* type) {  // as Cython's and pandas' cached properties
  if (!o) return Py_NewRef(self);
  PyObject* kept = PyObject_GetAttrString(o, "kept");
  PyObject* value = kept ? PyDict_GetItemWithError(kept, self) : NULL;
  Py_XINCREF(value);
  if (kept && !value && !PyErr_Occurred()) {
    value = PyObject_CallOneArg(((Cached*)self)->function, o);
    if (value) PyDict_SetItem(kept, self, value);
  }
  Py_XDECREF(kept);
  return value;
}

static int refuse(PyObject* self, PyObject* o, PyObject* value) {
  PyErr_SetString(PyExc_AttributeError, "read only");
  return -1;
}

static int init(PyObject* self, PyObject* args, PyObject* named) {
  PyObject* f;
  if (!PyArg_ParseTuple(args, "O", &f)) return -1;
  ((Cached*)self)->function = Py_NewRef(f);
  return 0;
}

static PyTypeObject kind = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "in_c.cached", .tp_basicsize = sizeof(Cached),
                            .tp_flags = Py_TPFLAGS_DEFAULT, .tp_new = PyType_GenericNew, .tp_init = init,
                            .tp_descr_get = cached, .tp_descr_set = refuse};

typedef struct { PyObject_HEAD Py_ssize_t length; } Sized;

static int set_length(PyObject* self, PyObject* args, PyObject* named) {
  return PyArg_ParseTuple(args, "n", &((Sized*)self)->length) ? 0 : -1;
}

static Py_ssize_t length(PyObject* self) { return ((Sized*)self)->length; }

static PySequenceMethods sequence = {.sq_length = length};
static PyTypeObject sized = {PyVarObject_HEAD_INIT(NULL, 0).tp_name = "in_c.sized", .tp_basicsize = sizeof(Sized),
                             .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, .tp_new = PyType_GenericNew,
                             .tp_init = set_length, .tp_as_sequence = &sequence};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "in_c", .m_size = -1};

PyMODINIT_FUNC PyInit_in_c(void) {
  if (PyType_Ready(&kind) < 0 || PyType_Ready(&sized) < 0) return NULL;
  PyObject* m = PyModule_Create(&module);
  if (m) PyModule_AddObjectRef(m, "cached", (PyObject*)&kind);
  if (m) PyModule_AddObjectRef(m, "sized", (PyObject*)&sized);
  return m;
}
"""


@pytest.fixture(scope="module")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder: Path = tmp_path_factory.mktemp("in_c")
    (folder / "in_c.c").write_text(CACHED)
    command = ["gcc", "-shared", "-fPIC", "-I", sysconfig.get_paths()["include"], "in_c.c", "-o", "in_c.so"]
    subprocess.run(command, cwd=folder, check=True)
    spec = importlib.util.spec_from_file_location("in_c", folder / "in_c.so")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_getter_in_c_that_keeps_what_it_read(in_c: ModuleType) -> None:
    class Index:
        def __init__(self, n: int) -> None:
            self.n = n
            self.kept: dict[Any, Any] = {}

        @in_c.cached  # type: ignore[untyped-decorator]
        def values(self) -> Any:
            return np.arange(self.n)

    def f(index: Index, x: torch.Tensor) -> Any:
        y = x + 1
        return index.values, y

    fast = flashover.compile(f)
    for n in (3, 1, 2):
        index = Index(n)
        for _ in range(2):
            assert fast(index, torch.ones(2))[0].tolist() == [*range(n)]
            assert [type(v) for v in index.kept.values()] == [np.ndarray]


def test_a_length_that_a_base_in_c_keeps(in_c: ModuleType) -> None:
    class Column(in_c.sized):  # type: ignore[name-defined,misc]
        pass

    def length(column: Column, x: torch.Tensor) -> Any:
        return x + len(column)

    def truth(column: Column, x: torch.Tensor) -> Any:
        return x + 1 if column else x

    for f in (length, truth):
        fast = flashover.compile(f)
        for n in (3, 0, 2, 3):
            assert torch.equal(fast(Column(n), torch.ones(2)), f(Column(n), torch.ones(2))), (f.__name__, n)
