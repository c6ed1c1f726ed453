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

}  // namespace flashover::compat
