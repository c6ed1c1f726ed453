// Builtins that look inside old objects: attributes, types, identity, iteration, classes in the making.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "frame/interpret/instructions.h"
#include "frame/interpret/native_handlers.h"

namespace flashover::frame {

PyObject* do_getattr(const NativeCall& c) {
  if (c.kwnames != nullptr || c.nargs < 2 || c.nargs > 3 || !PyUnicode_Check(c.args[1])) return c.run();
  Ref name = Ref::borrow(c.args[1]);
  if (c.nargs == 2) return c.in.get_attr(c.args[0], name.get());
  PyObject* out = nullptr;
  int r = c.in.find_attr(c.args[0], name.get(), &out);
  if (r == 1) return out;
  if (r < 0) {
    if (c.in.aborted() || !PyErr_ExceptionMatches(PyExc_AttributeError)) return nullptr;
    PyErr_Clear();
  }
  return Py_NewRef(c.args[2]);
}

PyObject* do_hasattr(const NativeCall& c) {
  if (c.kwnames != nullptr || c.nargs != 2 || !PyUnicode_Check(c.args[1])) return c.run();
  PyObject* out = nullptr;
  int r = c.in.find_attr(c.args[0], c.args[1], &out);
  Py_XDECREF(out);
  if (r < 0) {
    if (c.in.aborted() || !PyErr_ExceptionMatches(PyExc_AttributeError)) return nullptr;
    PyErr_Clear();
  }
  return PyBool_FromLong(r == 1);
}

PyObject* do_setattr(const NativeCall& c) {
  if (c.kwnames != nullptr || c.nargs != 3 || !PyUnicode_Check(c.args[1])) return c.run();
  return c.in.set_attr(c.args[0], c.args[1], c.args[2]) < 0 ? nullptr : Py_NewRef(Py_None);
}

PyObject* do_delattr(const NativeCall& c) {
  if (c.kwnames != nullptr || c.nargs != 2 || !PyUnicode_Check(c.args[1])) return c.run();
  return c.in.set_attr(c.args[0], c.args[1], nullptr) < 0 ? nullptr : Py_NewRef(Py_None);
}

namespace {

// torch.FloatTensor and its like ask for a tensor's dispatch keys, of which a trace tensor has others: they are
// answered from what they stand for. -1: nothing of that kind is in `classes`.
int is_tensor_of_kind(PyObject* o, PyObject* classes, int depth = 0) {
  if (PyTuple_Check(classes) && depth < 20) {
    int found = -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(classes); ++i) {
      const int one = is_tensor_of_kind(o, PyTuple_GET_ITEM(classes, i), depth + 1);
      if (one == 1) return 1;
      found = std::max(found, one);
    }
    return found;
  }
  if (std::strcmp(Py_TYPE(classes)->tp_name, "torch.tensortype") != 0) return -1;
  for (const char* name : {"dtype", "layout", "is_cuda"}) {
    Ref wanted = Ref::steal(PyObject_GetAttrString(classes, name)), is = Ref::steal(PyObject_GetAttrString(o, name));
    if (!wanted || !is) throw Declined("a kind of tensor that cannot be asked for");
    if (wanted.get() != is.get()) return 0;
  }
  Ref cuda = Ref::steal(PyObject_GetAttrString(o, "is_cuda")), cpu = Ref::steal(PyObject_GetAttrString(o, "is_cpu"));
  return cuda.get() == Py_True || cpu.get() == Py_True;
}

}  // namespace

PyObject* do_isinstance(const NativeCall& c) {
  if (c.nargs == 2) {
    if (PyTuple_Check(c.args[1])) c.in.consume(c.args[1]);
    c.in.look_special(c.args[1], "__instancecheck__");
    c.in.look_special(c.args[1], "__subclasscheck__");
    if (c.kwnames == nullptr && is_tensor(c.args[0]) && c.in.session != nullptr &&
        c.in.session->is_trace_tensor(c.args[0]) && is_tensor_of_kind(c.args[0], c.args[1]) == 1)
      return Py_NewRef(Py_True);
  }
  return c.run();
}

PyObject* do_len(const NativeCall& c) {
  if (c.nargs == 1 && c.kwnames == nullptr) {
    PyObject* o = c.args[0];
    c.in.look_special(o, "__len__");
    if (trace::Session* s = c.in.session; s != nullptr && !s->sizes().empty() && s->is_trace_tensor(o)) {
      if (PyObject* size = PyObject_CallMethod(o, "size", "i", 0)) return c.in.recorder.numbers.of_sizes(size);
      PyErr_Clear();  // len() has words of its own
    }
    if (PyList_Check(o) || PyTuple_Check(o) || PyDict_Check(o) || PyAnySet_Check(o))
      c.in.recorder.length(o);
    else if (!is_tensor(o))
      c.in.recorder.contents(o);
  }
  return c.run();
}

PyObject* do_callable(const NativeCall& c) {
  if (c.nargs == 1) c.in.look_special(c.args[0], "__call__");
  return c.run();
}

PyObject* do_id(const NativeCall& c) {
  if (c.nargs == 1) c.in.recorder.identity(c.args[0]);
  return c.run();
}

PyObject* do_hash(const NativeCall& c) {
  if (c.nargs == 1) c.in.recorder.hash(c.args[0]);
  return c.run();
}

PyObject* do_subclass_check(const NativeCall& c) {  // _abc._abc_subclasscheck(abstract, class)
  Ref result = Ref::steal(c.run());
  if (result && c.nargs == 2 && PyBool_Check(result.get()) && PyType_Check(c.args[0]) && PyType_Check(c.args[1]))
    c.in.recorder.subclass(c.args[1], c.args[0], result.get() == Py_True);
  return result.release();
}

PyObject* do_instance_check(const NativeCall& c) {  // _abc._abc_instancecheck(abstract, instance)
  Ref result = Ref::steal(c.run());
  if (result && c.nargs == 2 && PyBool_Check(result.get()) && PyType_Check(c.args[0]))
    c.in.recorder.subclass(reinterpret_cast<PyObject*>(Py_TYPE(c.args[1])), c.args[0], result.get() == Py_True);
  return result.release();
}

PyObject* do_iter(const NativeCall& c) {
  if (c.nargs == 1 && c.kwnames == nullptr) return c.in.iterator(c.args[0]);
  for (size_t i = 0; i < c.nargs; ++i) c.in.consume(c.args[i]);  // iter(function, end) compares what it gives
  return c.run();
}

namespace {

// Counters that torch numbers its own things with: nobody asks for the numbers.
bool is_counter_of_torch(const NativeCall& c) {
  static PyObject* const counter = [] {
    Ref m = Ref::borrow(PyDict_GetItemString(PyImport_GetModuleDict(), "torch.autograd.function"));
    PyObject* found = m ? PyObject_GetAttrString(m.get(), "AUTOGRAD_FUNCTION_COUNTER") : nullptr;
    PyErr_Clear();
    return found;
  }();
  return counter != nullptr && c.nargs == 1 && c.args[0] == counter;
}

}  // namespace

PyObject* do_next(const NativeCall& c) {
  if (is_counter_of_torch(c)) return c.run();
  if (c.kwnames != nullptr || c.nargs < 1 || c.nargs > 2 || !PyIter_Check(c.args[0])) return c.run();
  PyObject* v = c.in.next(c.args[0], true);
  if (v != nullptr) return v;
  if (PyErr_Occurred()) {
    if (c.nargs == 1 || c.in.aborted() || !PyErr_ExceptionMatches(PyExc_StopIteration)) return nullptr;
    PyErr_Clear();
  }
  if (c.nargs == 2) return Py_NewRef(c.args[1]);
  PyErr_SetNone(PyExc_StopIteration);
  return nullptr;
}

PyObject* do_vars(const NativeCall& c) {
  if (c.nargs != 1) throw Declined("call of vars() without an argument");
  Ref name = Ref::steal(PyUnicode_InternFromString("__dict__"));
  return c.in.get_attr(c.args[0], name.get());
}

PyObject* do_build_class(const NativeCall& c) {
  const MakesClass makes(c.in);
  Ref made = Ref::steal(c.run());
  if (made && PyType_Check(made.get())) c.in.recorder.fresh_type(made.get());
  return made.release();
}

// _abc._abc_init(class), at the end of ABCMeta.__new__: asks the bases what is abstract.
PyObject* do_abc_init(const NativeCall& c) {
  if (c.nargs != 1 || !c.in.recorder.is_fresh_type(c.args[0])) throw Declined("call of " + callable_name(c.f));
  static PyObject* const name = PyUnicode_InternFromString("__abstractmethods__");
  PyObject* bases = reinterpret_cast<PyTypeObject*>(c.args[0])->tp_bases;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(bases); ++i)
    c.in.recorder.type_lookup(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(bases, i)), name);
  return c.run();
}

// Of a class that one with slots takes the place of (dataclasses, from 3.14 on).
PyObject* do_clear_type_descriptors(const NativeCall& c) {
  if (c.nargs != 1 || !c.in.recorder.is_fresh_type(c.args[0])) throw Declined("call of " + callable_name(c.f));
  return c.run();
}

PyObject* do_abc_register(const NativeCall& c) {
  if (c.nargs != 2 || !c.in.recorder.is_fresh_type(c.args[0])) throw Declined("call of " + callable_name(c.f));
  return c.run();
}

PyObject* do_bool(const NativeCall& c) {
  if (c.nargs != 1 || c.kwnames != nullptr) return c.run();
  int t = c.in.truth(c.args[0]);
  return t < 0 ? nullptr : PyBool_FromLong(t);
}

PyObject* do_object_reduce(const NativeCall& c) {
  if (c.self != nullptr && c.in.recorder.is_old(c.self)) {
    if (is_tensor(c.self)) throw Declined("a tensor is copied through pickling");
    if (c.in.recorder.instance_dict(c.self) != kNoSource) c.in.recorder.contents(*_PyObject_GetDictPtr(c.self));
    c.in.consume(c.self);
  }
  return c.run();
}

PyObject* do_exception_write(const NativeCall& c) {
  if (c.self != nullptr && c.in.recorder.is_old(c.self)) throw Declined("an exception from before the call is written");
  return c.run();
}

PyObject* do_new(const NativeCall& c) {  // T.__new__(cls, ...) of a builtin type
  auto* t = reinterpret_cast<PyTypeObject*>(c.self);
  const Native* n = nullptr;
  for (PyTypeObject* b = t; b != nullptr && n == nullptr; b = b->tp_base) {
    if (PyExceptionClass_Check(reinterpret_cast<PyObject*>(b))) return c.run();
    n = native_type(b);
    if (!is_python_class(b)) break;
  }
  const KnownTypes& k = known_types();
  if (n == nullptr && !(k.tensor != nullptr && PyType_IsSubtype(t, k.tensor)))
    throw Declined("call of " + std::string(t->tp_name) + ".__new__");
  if (t != &PyBaseObject_Type)
    for (size_t i = 1; i < c.nargs; ++i) c.in.consume(c.args[i]);
  const MakesClass makes(c.in);
  Ref made = Ref::steal(c.run());
  if (made && PyType_Check(made.get())) c.in.recorder.fresh_type(made.get());
  return made.release();
}

}  // namespace flashover::frame
