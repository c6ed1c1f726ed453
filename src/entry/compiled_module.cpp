// Calls of compiled modules, and their change of class when that of the original changes.
#include "entry/compiled_module.h"

#include <structmember.h>

#include "base/boundary.h"
#include "entry/stance.h"
#include "guards/objects.h"

namespace flashover::entry {
namespace {

PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

PyTypeObject* original_class(PyTypeObject* type) {
  static PyObject* const name = interned("_flashover_class");
  PyObject* found = _PyType_Lookup(type, name);
  return found && PyType_Check(found) ? reinterpret_cast<PyTypeObject*>(found) : nullptr;
}

// The object in a slot, borrowed; null if it is empty.
PyObject* in_slot(PyObject* object, PyObject* name) {
  PyObject** slot = guards::member_slot(object, name);
  return slot ? *slot : nullptr;
}

// The call that an instance of the original class would run, with this instance as self.
PyObject* call_as_original(PyObject* self, PyTypeObject* original, PyObject* args, PyObject* kwargs) {
  static PyObject* const name = interned("__call__");
  PyObject* found = _PyType_Lookup(original, name);
  if (!found) return PyErr_Format(PyExc_TypeError, "'%.200s' object is not callable", original->tp_name);
  const descrgetfunc get = Py_TYPE(found)->tp_descr_get;
  PyObject* bound = get ? get(found, self, reinterpret_cast<PyObject*>(Py_TYPE(self))) : Py_NewRef(found);
  PyObject* result = bound ? PyObject_Call(bound, args, kwargs) : nullptr;
  Py_XDECREF(bound);
  return result;
}

PyObject* dict_of(PyObject* object) {
  PyObject** dict = _PyObject_GetDictPtr(object);
  return dict ? *dict : nullptr;
}

// The original got another class or another dict since its compiled module was last used.
bool follow_original(PyObject* self) {
  PyObject* module = PyImport_ImportModule("flashover._compiled_module");
  PyObject* done = module ? PyObject_CallMethod(module, "follow_original", "O", self) : nullptr;
  Py_XDECREF(module);
  Py_XDECREF(done);
  return done != nullptr;
}

PyObject* call_module(PyObject* self, PyObject* args, PyObject* kwargs) {
  static PyObject *const callable_name = interned("_flashover_callable"), *const self_name = interned("__bound_self__");
  PyTypeObject* original = original_class(Py_TYPE(self));
  PyObject* callable = in_slot(self, callable_name);
  if (!original) return PyErr_Format(PyExc_SystemError, "%R is no compiled module", Py_TYPE(self));
  // torch.fx looks for the module that it sees called among the children of its root: this one, not the original.
  if (!callable || fx_is_tracing()) return call_as_original(self, original, args, kwargs);
  PyObject* module = in_slot(callable, self_name);
  Py_INCREF(callable);
  const bool in_step = !module || (Py_TYPE(module) == original && dict_of(module) == dict_of(self));
  PyObject* result = in_step || follow_original(self) ? PyObject_Call(callable, args, kwargs) : nullptr;
  Py_DECREF(callable);
  return result;
}

PyObject* allocate_ordinary(PyTypeObject* type, Py_ssize_t items) {
  PyTypeObject* original = original_class(type);
  if (!original) return PyErr_Format(PyExc_SystemError, "%R is no class of compiled modules", type);
  return original->tp_alloc(original, items);
}

bool is_compiled_class(PyTypeObject* type) {
  if (original_class(type)) return true;
  PyErr_Format(PyExc_TypeError, "%R is no class of compiled modules", type);
  return false;
}

}  // namespace

bool route(PyTypeObject* compiled_class) {
  if (!is_compiled_class(compiled_class)) return false;
  compiled_class->tp_call = at_boundary<call_module>;
  compiled_class->tp_alloc = at_boundary<allocate_ordinary>;
  return true;
}

PyObject* empty_module(PyTypeObject* compiled_class) {
  return is_compiled_class(compiled_class) ? original_class(compiled_class)->tp_alloc(compiled_class, 0) : nullptr;
}

bool change_class(PyObject* instance, PyTypeObject* to) {
  static PyObject* const name = interned("_flashover_callable");
  PyTypeObject* from = Py_TYPE(instance);
  if (from == to) return true;
  PyObject **before = guards::member_slot(instance, name), *descriptor = _PyType_Lookup(to, name);
  const bool compiled =
      original_class(from) && original_class(to) && before && descriptor && Py_TYPE(descriptor) == &PyMemberDescr_Type;
  constexpr unsigned long kLayout = Py_TPFLAGS_HEAPTYPE | Py_TPFLAGS_MANAGED_DICT | Py_TPFLAGS_HAVE_GC;
  const auto offset = compiled ? reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member->offset : 0;
  if (!compiled || offset != reinterpret_cast<char*>(before) - reinterpret_cast<char*>(instance) ||
      from->tp_basicsize != to->tp_basicsize || from->tp_itemsize != to->tp_itemsize ||
      from->tp_dictoffset != to->tp_dictoffset || from->tp_weaklistoffset != to->tp_weaklistoffset ||
      from->tp_dealloc != to->tp_dealloc || from->tp_free != to->tp_free ||
      (from->tp_flags & kLayout) != (to->tp_flags & kLayout)) {
    PyErr_Format(PyExc_TypeError, "__class__ assignment: the layout of compiled '%s' differs from that of '%s'",
                 to->tp_name, from->tp_name);
    return false;
  }
  // Attributes that the object holds without a dict lie in the order of its present class's keys: now they become a
  // dict.
  _PyObject_GetDictPtr(instance);
  Py_INCREF(to);
  Py_SET_TYPE(instance, to);
  Py_DECREF(from);
  return true;
}

}  // namespace flashover::entry
