// Reads a signature once; binding a call copies borrowed pointers, with the defaults of that moment.
#include "entry/binder.h"

namespace flashover::entry {
namespace {

PyObject* parameter_name(PyCodeObject* code, int i) { return PyTuple_GET_ITEM(code->co_localsplusnames, i); }

// Parameter names are interned, and so are nearly all keywords: identity first, text only when that found nothing.
int find_parameter(PyCodeObject* code, PyObject* name, int from, int to) {
  for (int i = from; i < to; i++)
    if (parameter_name(code, i) == name) return i;
  for (int i = from; i < to; i++) {
    int equal = PyUnicode_Compare(parameter_name(code, i), name);
    if (equal == -1 && PyErr_Occurred()) PyErr_Clear();
    if (equal == 0) return i;
  }
  return -1;
}

}  // namespace

Signature Signature::of(PyFunctionObject* f) {
  Signature s;
  s.code = reinterpret_cast<PyCodeObject*>(f->func_code);
  s.positional = s.code->co_argcount;
  s.positional_only = s.code->co_posonlyargcount;
  s.keyword_only = s.code->co_kwonlyargcount;
  s.varargs = s.code->co_flags & CO_VARARGS;
  s.varkw = s.code->co_flags & CO_VARKEYWORDS;
  s.slots = s.positional + s.keyword_only + s.varargs + s.varkw;
  return s;
}

bool Bound::bind(const Signature& s, PyFunctionObject* f, PyObject* self, PyObject* const* args, Py_ssize_t count,
                 PyObject* kwnames) {
  if (s.slots <= kInline) {
    slots_ = inline_;
  } else {
    heap_.resize(static_cast<size_t>(s.slots));
    slots_ = heap_.data();
  }
  int named = s.positional + s.keyword_only;
  for (int i = 0; i < s.slots; i++) slots_[i] = nullptr;
  Py_ssize_t given = count + (self ? 1 : 0);
  Py_ssize_t placed = given < s.positional ? given : s.positional;
  auto argument = [&](Py_ssize_t i) { return self ? (i == 0 ? self : args[i - 1]) : args[i]; };
  for (Py_ssize_t i = 0; i < placed; i++) slots_[i] = argument(i);
  if (s.varargs) {
    varargs_ = PyTuple_New(given - placed);
    if (!varargs_) return PyErr_Clear(), false;
    for (Py_ssize_t i = placed; i < given; i++) {
      Py_INCREF(argument(i));
      PyTuple_SET_ITEM(varargs_, i - placed, argument(i));
    }
    slots_[named] = varargs_;
  } else if (given > placed) {
    return false;
  }
  if (s.varkw) {
    varkw_ = PyDict_New();
    if (!varkw_) return PyErr_Clear(), false;
    slots_[named + s.varargs] = varkw_;
  }
  Py_ssize_t keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  for (Py_ssize_t k = 0; k < keywords; k++) {
    PyObject* name = PyTuple_GET_ITEM(kwnames, k);
    int i = find_parameter(s.code, name, s.positional_only, named);
    if (i >= 0) {
      if (slots_[i]) return false;
      slots_[i] = args[count + k];
    } else if (!varkw_ || PyDict_SetItem(varkw_, name, args[count + k]) != 0) {
      PyErr_Clear();
      return false;
    }
  }
  PyObject* defaults = f->func_defaults;
  Py_ssize_t defaulted = defaults ? PyTuple_GET_SIZE(defaults) : 0;
  for (int i = 0; i < s.positional; i++) {
    if (slots_[i]) continue;
    Py_ssize_t d = i - (s.positional - defaulted);
    if (d < 0) return false;
    slots_[i] = PyTuple_GET_ITEM(defaults, d);
  }
  for (int i = s.positional; i < named; i++) {
    if (slots_[i]) continue;
    PyObject* value =
        f->func_kwdefaults ? PyDict_GetItemWithError(f->func_kwdefaults, parameter_name(s.code, i)) : nullptr;
    if (!value) return PyErr_Clear(), false;
    slots_[i] = value;
  }
  return true;
}

}  // namespace flashover::entry
