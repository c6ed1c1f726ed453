// Structural pattern matching.
#include "frame/interpret/instructions.h"

namespace flashover::frame {

PyObject* match_keys(Interpreter& in, PyObject* subject, PyObject* keys) {
  Ref name = Ref::steal(PyUnicode_InternFromString("get"));
  Ref get = Ref::steal(in.get_attr(subject, name.get()));
  if (!get) return nullptr;
  Ref missing = Ref::steal(PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type)));
  Ref values = Ref::steal(PyTuple_New(PyTuple_GET_SIZE(keys)));
  if (!missing || !values) return nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); ++i) {
    PyObject* args[3] = {nullptr, PyTuple_GET_ITEM(keys, i), missing.get()};
    PyObject* v = in.call(get.get(), args + 1, 2, nullptr);
    if (v == nullptr) return nullptr;
    if (v == missing.get()) {
      Py_DECREF(v);
      return Py_NewRef(Py_None);
    }
    PyTuple_SET_ITEM(values.get(), i, v);
  }
  return values.release();
}

PyObject* match_class(Interpreter& in, PyObject* subject, PyObject* type, int positional, PyObject* keywords) {
  if (!PyType_Check(type)) {
    PyErr_SetString(PyExc_TypeError, "called match pattern must be a class");
    return nullptr;
  }
  int is = PyObject_IsInstance(subject, type);
  if (is <= 0) return nullptr;
  Ref values = Ref::steal(PyList_New(0));
  if (!values) return nullptr;
  auto take = [&](PyObject* name) {
    PyObject* v = nullptr;
    if (in.find_attr(subject, name, &v) <= 0) return false;
    PyList_Append(values.get(), v);
    Py_DECREF(v);
    return true;
  };
  if (positional > 0) {
    Ref key = Ref::steal(PyUnicode_InternFromString("__match_args__"));
    PyObject* found = nullptr;
    if (in.find_attr(type, key.get(), &found) < 0) return nullptr;
    Ref names = Ref::steal(found);
    if (names) in.consume(names.get());
    const bool self = !names && (reinterpret_cast<PyTypeObject*>(type)->tp_flags & _Py_TPFLAGS_MATCH_SELF);
    if (names && !PyTuple_CheckExact(names.get())) {
      PyErr_Format(PyExc_TypeError, "%s.__match_args__ must be a tuple (got %s)",
                   reinterpret_cast<PyTypeObject*>(type)->tp_name, Py_TYPE(names.get())->tp_name);
      return nullptr;
    }
    Py_ssize_t allowed = self ? 1 : names ? PyTuple_GET_SIZE(names.get()) : 0;
    if (allowed < positional) {
      PyErr_Format(PyExc_TypeError, "%s() accepts %d positional sub-pattern%s (%d given)",
                   reinterpret_cast<PyTypeObject*>(type)->tp_name, static_cast<int>(allowed), allowed == 1 ? "" : "s",
                   positional);
      return nullptr;
    }
    if (self) {
      PyList_Append(values.get(), subject);
    } else {
      for (int i = 0; i < positional; ++i)
        if (!take(PyTuple_GET_ITEM(names.get(), i))) return nullptr;
    }
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keywords); ++i)
    if (!take(PyTuple_GET_ITEM(keywords, i))) return nullptr;
  return PyList_AsTuple(values.get());
}

}  // namespace flashover::frame
