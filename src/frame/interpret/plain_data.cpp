// C functions that compute from plain data alone: numbers, strings and builtin containers of them. What they are given
// is guarded whole and what they answer is a constant. dir() is among them: its answer is asked for again by the
// guards.
#include "frame/interpret/plain_data.h"

#include <algorithm>

#include "base/boundary.h"
#include "frame/interpret/instructions.h"
#include "guards/objects.h"

namespace flashover::frame {
namespace {

constexpr size_t kMost = 256;  // objects in what a function is given

[[noreturn]] void decline_call(const NativeCall& c) { throw Declined("call of " + callable_name(c.f)); }

// Collects the parts of `o` that are no numbers; false: something else is among them, or there are too many.
bool collect(PyObject* o, std::vector<PyObject*>& parts) {
  if (o == Py_None || PyBool_Check(o) || PyLong_CheckExact(o) || PyFloat_CheckExact(o) || PyComplex_CheckExact(o))
    return true;
  if (parts.size() >= kMost) return false;
  parts.push_back(o);
  if (PyUnicode_CheckExact(o) || PyBytes_CheckExact(o)) return true;
  if (PyTuple_CheckExact(o) || PyList_CheckExact(o)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      if (!collect(PySequence_Fast_GET_ITEM(o, i), parts)) return false;
    return true;
  }
  Py_ssize_t at = 0;
  if (PyDict_CheckExact(o)) {
    PyObject *key, *value;
    while (PyDict_Next(o, &at, &key, &value))
      if (!collect(key, parts) || !collect(value, parts)) return false;
    return true;
  }
  if (!PyAnySet_CheckExact(o)) return false;
  PyObject* item;
  Py_hash_t hash;
  while (_PySet_NextEntry(o, &at, &item, &hash))
    if (!collect(item, parts)) return false;
  return true;
}

// Takes the arguments for read, whole.
std::vector<PyObject*> read_plain_arguments(const NativeCall& c) {
  std::vector<PyObject*> parts;
  const size_t count = c.all_nargs + (c.kwnames == nullptr ? 0 : static_cast<size_t>(PyTuple_GET_SIZE(c.kwnames)));
  for (size_t i = 0; i < count; ++i) {
    c.in.consume(c.all[i]);
    if (!collect(c.all[i], parts)) decline_call(c);
  }
  return parts;
}

PyObject* dir_as_tuple(PyObject*, PyObject* o) {
  Ref names = Ref::steal(PyObject_Dir(o));
  return names ? PySequence_Tuple(names.get()) : nullptr;
}

// Python code of the program's answers dir() of it.
bool has_dir_of_its_own(const NativeCall& c, PyObject* o) {
  static PyObject* const name = PyUnicode_InternFromString("__dir__");
  PyTypeObject* t = Py_TYPE(o);
  if ((t->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0) {
    PyObject* method = c.in.recorder.type_lookup(t, name);
    if (method == nullptr || Py_TYPE(method) != &PyMethodDescr_Type) return true;
  }
  return PyModule_Check(o) && PyDict_GetItemWithError(PyModule_GetDict(o), name) != nullptr;
}

}  // namespace

PyObject* do_plain(const NativeCall& c) {
  read_plain_arguments(c);
  return c.run();
}

PyObject* do_pickle(const NativeCall& c) {
  const std::vector<PyObject*> parts = read_plain_arguments(c);
  // Of what occurs twice the second is a reference to the first, if it is the same object: which guards do not say.
  for (size_t i = 0; i < parts.size(); ++i)
    for (size_t k = i + 1; k < parts.size(); ++k)
      if (Py_TYPE(parts[i]) == Py_TYPE(parts[k]) && PyObject_RichCompareBool(parts[i], parts[k], Py_EQ) != 0)
        decline_call(c);
  return c.run();
}

PyObject* do_dir(const NativeCall& c) {
  if (c.nargs != 1 || c.kwnames != nullptr) throw Declined("call of dir() without an argument");
  PyObject* o = c.args[0];
  if (!c.in.recorder.is_old(o)) {
    c.in.look_special(o, "__dir__");
    return c.run();
  }
  if (is_tensor(o) || has_dir_of_its_own(c, o)) decline_call(c);
  if (!PyType_Check(o) && !PyModule_Check(o)) {
    c.in.recorder.whole(o);
    return c.run();
  }
  PyObject* names = PyModule_Check(o) ? PyModule_GetDict(o) : type_dict(reinterpret_cast<PyTypeObject*>(o));
  if (c.in.recorder.has_writes(names) || c.in.recorder.is_fresh_type(o) || c.in.recorder.is_loose(o)) decline_call(c);
  if (PyType_Check(o) && guards::is_local_class(reinterpret_cast<PyTypeObject*>(o))) decline_call(c);
  static PyMethodDef def = {"dir", at_boundary<dir_as_tuple>, METH_O, nullptr};
  static PyObject* const ask = PyCFunction_New(&def, nullptr);
  Ref now = Ref::steal(PyObject_CallOneArg(ask, o));
  if (!now) return nullptr;
  PyObject* args[1] = {o};
  c.in.recorder.call_gives(ask, args, 1, nullptr, now.get());
  return PySequence_List(now.get());
}

}  // namespace flashover::frame
