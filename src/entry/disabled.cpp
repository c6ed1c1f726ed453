// The Python type of what flashover.disable makes: a callable that is never captured, and that ends a graph.
#include <Python.h>
#include <structmember.h>

#include "base/boundary.h"
#include "entry/callable.h"
#include "entry/entry.h"
#include "frame/resume.h"

namespace flashover::entry {
namespace {

struct Disabled {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* function;
  PyObject* reason;
  bool recursive;  // nor is what it calls compiled
  bool counts;     // the user wrote the function: its calls are eager calls
  PyObject* dict;
  PyObject* weakrefs;
};

PyObject* disabled_call(PyObject* o, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* d = reinterpret_cast<Disabled*>(o);
  counters().eager_calls += d->counts;
  if (!d->recursive) {
    frame::leave_alone(d->function);
    return PyObject_Vectorcall(d->function, args, nargsf, kwnames);
  }
  frame::TakeCallees nobody(nullptr);
  return PyObject_Vectorcall(d->function, args, nargsf, kwnames);
}

PyObject* disabled_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *function, *reason;
  int recursive = 1, counts = 0;
  if (!PyArg_ParseTuple(args, "OU|pp:Disabled", &function, &reason, &recursive, &counts)) return nullptr;
  auto* d = PyObject_GC_New(Disabled, type);
  if (!d) return nullptr;
  d->vectorcall = at_boundary<disabled_call>;
  d->function = Py_NewRef(function);
  d->reason = Py_NewRef(reason);
  d->recursive = recursive != 0;
  d->counts = counts != 0;
  d->dict = d->weakrefs = nullptr;
  PyObject_GC_Track(d);
  return reinterpret_cast<PyObject*>(d);
}

int disabled_traverse(PyObject* o, visitproc visit, void* arg) noexcept {
  auto* d = reinterpret_cast<Disabled*>(o);
  Py_VISIT(d->function);
  Py_VISIT(d->dict);
  return 0;
}
int disabled_clear(PyObject* o) noexcept {
  auto* d = reinterpret_cast<Disabled*>(o);
  Py_CLEAR(d->function);
  Py_CLEAR(d->reason);
  Py_CLEAR(d->dict);
  return 0;
}
void disabled_dealloc(PyObject* o) noexcept {
  PyObject_GC_UnTrack(o);
  if (reinterpret_cast<Disabled*>(o)->weakrefs) PyObject_ClearWeakRefs(o);
  disabled_clear(o);
  Py_TYPE(o)->tp_free(o);
}
PyObject* disabled_repr(PyObject* o) {
  return PyUnicode_FromFormat("<flashover disabled %R>", reinterpret_cast<Disabled*>(o)->function);
}

PyMemberDef kDisabledMembers[] = {
    {"__disabled_function__", T_OBJECT, offsetof(Disabled, function), READONLY, "the function"},
    {"reason", T_OBJECT, offsetof(Disabled, reason), READONLY, "why"},
    {nullptr, 0, 0, 0, nullptr},
};

}  // namespace

bool add_disabled_type(PyObject* module) {
  static PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  be_callable(type, {.name = "flashover._C.Disabled",
                     .size = sizeof(Disabled),
                     .vectorcall = offsetof(Disabled, vectorcall),
                     .dict = offsetof(Disabled, dict),
                     .weakrefs = offsetof(Disabled, weakrefs),
                     .tp_new = at_boundary<disabled_new>,
                     .tp_dealloc = disabled_dealloc,
                     .tp_traverse = disabled_traverse,
                     .tp_clear = disabled_clear,
                     .tp_repr = at_boundary<disabled_repr>,
                     .members = kDisabledMembers});
  if (PyType_Ready(&type) < 0) return false;
  return PyModule_AddObjectRef(module, "Disabled", reinterpret_cast<PyObject*>(&type)) == 0;
}

}  // namespace flashover::entry
