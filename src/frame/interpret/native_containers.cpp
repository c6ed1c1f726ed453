// Methods of dicts and lists, and operator's functions, which do what the operators do.
#include <cstring>

#include "frame/interpret/native_handlers.h"

namespace flashover::frame {

PyObject* do_dict_get(const NativeCall& c) {
  if (c.kwnames != nullptr || c.nargs < 1 || c.nargs > 2) return c.run();
  PyObject* v = c.in.recorder.dict_get(c.self, c.args[0]);
  if (v != nullptr) return Py_NewRef(v);
  if (PyErr_Occurred()) return nullptr;
  return Py_NewRef(c.nargs == 2 ? c.args[1] : Py_None);
}

PyObject* do_dict_contains(const NativeCall& c) {
  if (c.nargs != 1) return c.run();
  PyObject* v = c.in.recorder.dict_get(c.self, c.args[0]);
  if (v == nullptr && PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(v != nullptr);
}

PyObject* do_dict_getitem(const NativeCall& c) {
  if (c.nargs != 1 || c.kwnames != nullptr) return c.run();
  // dict's own, whatever a subclass makes of []; c.run() raises or asks __missing__.
  PyObject* v = c.in.recorder.dict_get(c.self, c.args[0]);
  if (v != nullptr) return Py_NewRef(v);
  if (PyErr_Occurred()) return nullptr;
  if (c.in.recorder.is_old(c.self) && PyObject_TypeCheck(c.self, known_types().defaultdict)) {
    c.in.recorder.default_factory(c.self);
    c.in.journal.whole(c.self);
  }
  return c.run();
}

namespace {

PyObject* write_one(const NativeCall& c, bool removes) {
  if (c.nargs < 1 || !c.in.recorder.is_old(c.self)) return c.run();
  PyObject* v = c.in.recorder.dict_get(c.self, c.args[0]);
  if (v == nullptr && PyErr_Occurred()) return nullptr;
  Ref keep = Ref::borrow(v);
  if (v != nullptr) c.in.recorder.numbers.read(v);  // what comes out is the dict's own object
  c.in.journal.dict_item(c.self, c.args[0], removes);
  return c.run();
}

}  // namespace

PyObject* do_dict_pop(const NativeCall& c) { return write_one(c, true); }

PyObject* do_dict_setdefault(const NativeCall& c) { return write_one(c, false); }

PyObject* do_list_append(const NativeCall& c) {
  if (c.in.recorder.is_old(c.self) && c.nargs == 1 && c.kwnames == nullptr) c.in.journal.append(c.self, c.args[0]);
  return c.run();
}

PyObject* do_generator(const NativeCall& c) {
  if (c.in.recorder.is_old(c.self)) throw Declined("a generator from before the call is used");
  return c.run();
}

// heapq's and bisect's functions write the list that is their first argument.
PyObject* do_write_list(const NativeCall& c) {
  for (size_t i = 0; i < c.nargs; ++i) c.in.consume(c.args[i]);
  if (c.nargs > 0 && c.in.recorder.is_old(c.args[0])) c.in.journal.whole(c.args[0]);
  return c.run();
}

// operator's functions do what the operators do.
PyObject* do_operator_setitem(const NativeCall& c) {
  if (c.nargs != 3 || c.kwnames != nullptr) return c.run();
  return c.in.set_subscript(c.args[0], c.args[1], c.args[2]) < 0 ? nullptr : Py_NewRef(Py_None);
}

PyObject* do_operator_delitem(const NativeCall& c) {
  if (c.nargs != 2 || c.kwnames != nullptr) return c.run();
  return c.in.set_subscript(c.args[0], c.args[1], nullptr) < 0 ? nullptr : Py_NewRef(Py_None);
}

PyObject* do_operator_getitem(const NativeCall& c) {
  return c.nargs == 2 && c.kwnames == nullptr ? c.in.subscript(c.args[0], c.args[1]) : c.run();
}

PyObject* do_operator_contains(const NativeCall& c) {
  if (c.nargs != 2 || c.kwnames != nullptr) return c.run();
  const int r = c.in.contains(c.args[0], c.args[1]);
  return r < 0 ? nullptr : PyBool_FromLong(r);
}

PyObject* do_operator_is(const NativeCall& c) {
  if (c.nargs == 2) c.in.recorder.same_or_distinct(c.args[0], c.args[1]);
  return c.run();
}

PyObject* do_operator_call(const NativeCall& c) {
  return c.nargs > 0 ? c.in.call(c.args[0], c.args + 1, c.nargs - 1, c.kwnames) : c.run();
}

// _count_elements(mapping, iterable), which collections.Counter counts with.
PyObject* do_count_elements(const NativeCall& c) {
  for (size_t i = 0; i < c.nargs; ++i) c.in.consume(c.args[i]);
  if (c.nargs > 0 && c.in.recorder.is_old(c.args[0])) c.in.journal.whole(c.args[0]);
  return c.run();
}

}  // namespace flashover::frame
