// Functions and types of CPython that some versions declare elsewhere, call otherwise or do not export.
#pragma once
#include "compat/python_version.h"

#if PY_VERSION_HEX >= 0x030D0000
extern "C" {  // exported, but declared for CPython itself only
PyAPI_FUNC(int) _PySet_NextEntry(PyObject* set, Py_ssize_t* pos, PyObject** key, Py_hash_t* hash);
PyAPI_FUNC(int) _PySet_Update(PyObject* set, PyObject* iterable);
PyAPI_FUNC(int) _PyDict_MergeEx(PyObject* dict, PyObject* other, int override);
PyAPI_FUNC(int) _PyObject_GetMethod(PyObject* object, PyObject* name, PyObject** method);
}
#endif
#if PY_VERSION_HEX >= 0x030E0000
extern "C" {
PyAPI_FUNC(PyObject*) _PyUnicode_JoinArray(PyObject* separator, PyObject* const* items, Py_ssize_t count);
PyAPI_FUNC(PyObject*) _PyList_Extend(PyListObject* list, PyObject* iterable);
}
#endif

namespace flashover::compat {

// 1: found, a new reference; 0: there is none, and no error; -1: an error.
inline int lookup_attribute(PyObject* object, PyObject* name, PyObject** found) {
#if PY_VERSION_HEX >= 0x030D0000
  return PyObject_GetOptionalAttr(object, name, found);
#else
  return _PyObject_LookupAttr(object, name, found);
#endif
}

inline int as_int(PyObject* number) {
#if PY_VERSION_HEX >= 0x030D0000
  return PyLong_AsInt(number);
#else
  return _PyLong_AsInt(number);
#endif
}

#if PY_VERSION_HEX >= 0x030D0000
// Of `object().__str__` and the like, whose type is not exported.
inline PyTypeObject* method_wrapper_type() {
  static PyTypeObject* const type = [] {
    PyObject* one = PyObject_GetAttrString(Py_None, "__str__");
    PyTypeObject* found = one != nullptr ? Py_TYPE(one) : nullptr;  // static
    Py_XDECREF(one);
    return found;
  }();
  return type;
}
#define _PyMethodWrapper_Type (*::flashover::compat::method_wrapper_type())
#endif

// warnings looks at its filters anew (from 3.14 on under its lock). False with an error set.
inline bool tell_filters_mutated() {
  PyObject* warnings = PyImport_ImportModule("_warnings");
  bool done = warnings != nullptr;
#if PY_VERSION_HEX >= 0x030E0000
  constexpr const char* kCalls[] = {"_acquire_lock", "_filters_mutated_lock_held", "_release_lock"};
#else
  constexpr const char* kCalls[] = {"_filters_mutated"};
#endif
  for (const char* name : kCalls) {
    PyObject* none = done ? PyObject_CallMethod(warnings, name, nullptr) : nullptr;
    done = none != nullptr;
    Py_XDECREF(none);
  }
  Py_XDECREF(warnings);
  return done;
}

// A function's own code for its annotations, which are made when they are asked for (3.14); null: it has none.
constexpr bool kAnnotatesLater = kPython314;
inline PyObject** annotate_slot([[maybe_unused]] PyFunctionObject* function) {
#if PY_VERSION_HEX >= 0x030E0000
  return &function->func_annotate;
#else
  return nullptr;
#endif
}

}  // namespace flashover::compat
