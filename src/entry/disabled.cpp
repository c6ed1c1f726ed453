// The Python type of what flashover.disable makes: a callable that is never captured, and that ends a graph.
#include <Python.h>
#include <structmember.h>

#include "base/boundary.h"
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

PyObject* call(PyObject* o, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* d = reinterpret_cast<Disabled*>(o);
  counters().eager_calls += d->counts;
  if (!d->recursive) {
    frame::leave_alone(d->function);
    return PyObject_Vectorcall(d->function, args, nargsf, kwnames);
  }
  frame::TakeCallees nobody(nullptr);
  return PyObject_Vectorcall(d->function, args, nargsf, kwnames);
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *function, *reason;
  int recursive = 1, counts = 0;
  if (!PyArg_ParseTuple(args, "OU|pp:Disabled", &function, &reason, &recursive, &counts)) return nullptr;
  auto* d = PyObject_GC_New(Disabled, type);
  if (!d) return nullptr;
  d->vectorcall = at_boundary<call>;
  d->function = Py_NewRef(function);
  d->reason = Py_NewRef(reason);
  d->recursive = recursive != 0;
  d->counts = counts != 0;
  d->dict = d->weakrefs = nullptr;
  PyObject_GC_Track(d);
  return reinterpret_cast<PyObject*>(d);
}

int traverse(PyObject* o, visitproc visit, void* arg) noexcept {
  auto* d = reinterpret_cast<Disabled*>(o);
  Py_VISIT(d->function);
  Py_VISIT(d->dict);
  return 0;
}
int clear(PyObject* o) noexcept {
  auto* d = reinterpret_cast<Disabled*>(o);
  Py_CLEAR(d->function);
  Py_CLEAR(d->reason);
  Py_CLEAR(d->dict);
  return 0;
}
void destroy(PyObject* o) noexcept {
  PyObject_GC_UnTrack(o);
  if (reinterpret_cast<Disabled*>(o)->weakrefs) PyObject_ClearWeakRefs(o);
  clear(o);
  Py_TYPE(o)->tp_free(o);
}
PyObject* get(PyObject* o, PyObject* instance, PyObject*) {
  return instance && instance != Py_None ? PyMethod_New(o, instance) : Py_NewRef(o);
}
PyObject* repr(PyObject* o) {
  return PyUnicode_FromFormat("<flashover disabled %R>", reinterpret_cast<Disabled*>(o)->function);
}

PyMemberDef kMembers[] = {
    {"__disabled_function__", T_OBJECT, offsetof(Disabled, function), READONLY, "the function"},
    {"reason", T_OBJECT, offsetof(Disabled, reason), READONLY, "why"},
    {nullptr, 0, 0, 0, nullptr},
};
PyGetSetDef kGetSets[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

}  // namespace

bool add_disabled_type(PyObject* module) {
  static PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "flashover._C.Disabled";
  type.tp_basicsize = sizeof(Disabled);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
  type.tp_vectorcall_offset = offsetof(Disabled, vectorcall);
  type.tp_call = PyVectorcall_Call;
  type.tp_new = at_boundary<make>;
  type.tp_dealloc = destroy;
  type.tp_traverse = traverse;
  type.tp_clear = clear;
  type.tp_descr_get = at_boundary<get>;
  type.tp_repr = at_boundary<repr>;
  type.tp_members = kMembers;
  type.tp_getset = kGetSets;
  type.tp_dictoffset = offsetof(Disabled, dict);
  type.tp_weaklistoffset = offsetof(Disabled, weakrefs);
  type.tp_getattro = PyObject_GenericGetAttr;
  type.tp_setattro = PyObject_GenericSetAttr;
  type.tp_free = PyObject_GC_Del;
  if (PyType_Ready(&type) < 0) return false;
  return PyModule_AddObjectRef(module, "Disabled", reinterpret_cast<PyObject*>(&type)) == 0;
}

}  // namespace flashover::entry
