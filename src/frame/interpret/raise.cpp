// Instructions that raise and handle exceptions, exception groups too, and enter and leave with statements.
#include <unordered_set>

#include "compat/opcodes.h"
#include "frame/interpret/instructions.h"

namespace flashover::frame {

bool split_group(Interpreter& in, PyObject* group, PyObject* type, Ref& match, Ref& rest) {
  if (PyTuple_Check(type)) in.consume(type);
  const int is = exception_matches(in, group, type);
  if (is < 0) return false;
  PyObject* const group_type = PyExc_BaseExceptionGroup;
  auto is_group_class = [group_type](PyObject* t) {
    return PyType_Check(t) &&
           PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(t), reinterpret_cast<PyTypeObject*>(group_type));
  };
  bool bad = is_group_class(type);
  for (Py_ssize_t i = 0; PyTuple_Check(type) && i < PyTuple_GET_SIZE(type); ++i)
    bad = bad || is_group_class(PyTuple_GET_ITEM(type, i));
  if (bad) {
    PyErr_SetString(PyExc_TypeError, "catching ExceptionGroup with except* is not allowed. Use except instead.");
    return false;
  }
  const bool grouped = PyObject_TypeCheck(group, reinterpret_cast<PyTypeObject*>(group_type));
  if (is == 1) {
    rest = Ref::borrow(Py_None);
    if (grouped) {
      match = Ref::borrow(group);
      return true;
    }
    Ref one = Ref::steal(PyTuple_Pack(1, group));  // a naked exception is caught as a group of one
    match = Ref::steal(one ? PyObject_CallFunction(group_type, "sO", "", one.get()) : nullptr);
    return static_cast<bool>(match);
  }
  if (!grouped) {
    match = Ref::borrow(Py_None);
    rest = Ref::borrow(group);
    return true;
  }
  Ref pair = Ref::steal(PyObject_CallMethod(group, "split", "O", type));
  if (!pair) return false;
  if (!PyTuple_CheckExact(pair.get())) {
    PyErr_Format(PyExc_TypeError, "%.200s.split must return a tuple, not %.200s", Py_TYPE(group)->tp_name,
                 Py_TYPE(pair.get())->tp_name);
    return false;
  }
  if (PyTuple_GET_SIZE(pair.get()) < 2) {
    PyErr_Format(PyExc_TypeError, "%.200s.split must return a 2-tuple, got tuple of size %zd", Py_TYPE(group)->tp_name,
                 PyTuple_GET_SIZE(pair.get()));
    return false;
  }
  match = Ref::borrow(PyTuple_GET_ITEM(pair.get(), 0));
  rest = Ref::borrow(PyTuple_GET_ITEM(pair.get(), 1));
  return true;
}

namespace {

// Of `group` (or of groups in it): the exceptions that are no groups, by address.
void add_leaves(PyObject* exception, std::unordered_set<PyObject*>& leaves) {
  if (!PyObject_TypeCheck(exception, reinterpret_cast<PyTypeObject*>(PyExc_BaseExceptionGroup))) {
    leaves.insert(exception);
    return;
  }
  PyObject* all = reinterpret_cast<PyBaseExceptionGroupObject*>(exception)->excs;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all); ++i) add_leaves(PyTuple_GET_ITEM(all, i), leaves);
}

// The part of `group` with these exceptions, in groups as they are there; None if there are none.
Ref part_of_group(PyObject* group, const std::unordered_set<PyObject*>& leaves) {
  Ref parts = Ref::steal(PyList_New(0));
  PyObject* all = reinterpret_cast<PyBaseExceptionGroupObject*>(group)->excs;
  for (Py_ssize_t i = 0; parts && i < PyTuple_GET_SIZE(all); ++i) {
    PyObject* e = PyTuple_GET_ITEM(all, i);
    const bool grouped = PyObject_TypeCheck(e, reinterpret_cast<PyTypeObject*>(PyExc_BaseExceptionGroup));
    Ref part = grouped ? part_of_group(e, leaves) : Ref::borrow(leaves.count(e) != 0 ? e : Py_None);
    if (!part || (part.get() != Py_None && PyList_Append(parts.get(), part.get()) < 0)) return {};
  }
  if (!parts || PyList_GET_SIZE(parts.get()) == 0) return parts ? Ref::borrow(Py_None) : Ref();
  Ref made = Ref::steal(PyObject_CallMethod(group, "derive", "O", parts.get()));
  if (!made) return {};
  if (!PyObject_TypeCheck(made.get(), reinterpret_cast<PyTypeObject*>(PyExc_BaseExceptionGroup))) {
    PyErr_SetString(PyExc_TypeError, "derive must return an instance of BaseExceptionGroup");
    return {};
  }
  Ref tb = Ref::steal(PyException_GetTraceback(group));
  if (tb && PyException_SetTraceback(made.get(), tb.get()) < 0) return {};
  PyException_SetContext(made.get(), PyException_GetContext(group));
  PyException_SetCause(made.get(), PyException_GetCause(group));
  if (PyObject* notes = reinterpret_cast<PyBaseExceptionObject*>(group)->notes;
      notes != nullptr && PySequence_Check(notes)) {
    Ref copy = Ref::steal(PySequence_List(notes));
    if (!copy || PyObject_SetAttrString(made.get(), "__notes__", copy.get()) < 0) return {};
  }
  return made;
}

}  // namespace

PyObject* what_to_reraise(PyObject* original, PyObject* raised) {
  const Py_ssize_t n = PyList_GET_SIZE(raised);
  if (!PyObject_TypeCheck(original, reinterpret_cast<PyTypeObject*>(PyExc_BaseExceptionGroup)))
    return Py_NewRef(n > 0 ? PyList_GET_ITEM(raised, 0) : Py_None);  // it was caught as a group of one, by one clause
  // What no clause took, or raised again as it was, goes on in one group; what clauses raised stands beside that.
  std::unordered_set<PyObject*> again;
  Ref others = Ref::steal(PyList_New(0));
  for (Py_ssize_t i = 0; others && i < n; ++i) {
    PyObject* e = PyList_GET_ITEM(raised, i);
    if (e == Py_None) continue;
    auto *a = reinterpret_cast<PyBaseExceptionObject*>(e), *b = reinterpret_cast<PyBaseExceptionObject*>(original);
    if (a->traceback == b->traceback && a->cause == b->cause && a->context == b->context && a->notes == b->notes)
      add_leaves(e, again);
    else if (PyList_Append(others.get(), e) < 0)
      return nullptr;
  }
  if (!others) return nullptr;
  Ref rest = again.empty() ? Ref::borrow(Py_None) : part_of_group(original, again);
  if (!rest || PyList_GET_SIZE(others.get()) == 0) return rest.release();
  if (rest.get() != Py_None && PyList_Append(others.get(), rest.get()) < 0) return nullptr;
  if (PyList_GET_SIZE(others.get()) == 1) return Py_NewRef(PyList_GET_ITEM(others.get(), 0));
  return PyObject_CallFunction(PyExc_BaseExceptionGroup, "sO", "", others.get());
}

int exception_matches(Interpreter& in, PyObject* value, PyObject* type) {
  auto is_exception_class = [](PyObject* t) { return PyExceptionClass_Check(t); };
  bool ok = true;
  if (PyTuple_Check(type)) {
    in.consume(type);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type); ++i) ok = ok && is_exception_class(PyTuple_GET_ITEM(type, i));
  } else {
    ok = is_exception_class(type);
  }
  if (!ok) {
    PyErr_SetString(PyExc_TypeError, "catching classes that do not inherit from BaseException is not allowed");
    return -1;
  }
  return PyErr_GivenExceptionMatches(value, type);
}

bool raise(Interpreter& in, PyObject* exception, PyObject* cause) {
  if (exception == nullptr) {
    PyObject* handled = PyErr_GetHandledException();
    if (handled == nullptr || handled == Py_None) {
      Py_XDECREF(handled);
      PyErr_SetString(PyExc_RuntimeError, "No active exception to reraise");
      return false;
    }
    if (!in.plain && in.recorder.is_old(handled) && in.is_inlined()) {
      Py_DECREF(handled);
      throw Declined("an exception from before the call is raised again");
    }
    PyErr_Restore(Py_NewRef(PyExceptionInstance_Class(handled)), handled, PyException_GetTraceback(handled));
    return true;
  }
  PyObject* no_args[1] = {nullptr};
  Ref value;
  if (PyExceptionClass_Check(exception)) {
    value = Ref::steal(in.call(exception, no_args + 1, 0, nullptr));
    if (!value) return false;
    if (!PyExceptionInstance_Check(value.get())) {
      PyErr_Format(PyExc_TypeError, "calling %R should have returned an instance of BaseException, not %R", exception,
                   Py_TYPE(value.get()));
      return false;
    }
  } else if (PyExceptionInstance_Check(exception)) {
    // Its traceback would grow, and nothing takes that back.
    if (!in.plain && in.recorder.is_old(exception)) throw Declined("an exception from before the call is raised again");
    value = Ref::borrow(exception);
  } else {
    PyErr_SetString(PyExc_TypeError, "exceptions must derive from BaseException");
    return false;
  }
  if (cause != nullptr) {
    Ref fixed;
    if (PyExceptionClass_Check(cause)) {
      fixed = Ref::steal(in.call(cause, no_args + 1, 0, nullptr));
      if (!fixed) return false;
    } else if (PyExceptionInstance_Check(cause)) {
      fixed = Ref::borrow(cause);
    } else if (cause != Py_None) {
      PyErr_SetString(PyExc_TypeError, "exception causes must derive from BaseException");
      return false;
    }
    PyException_SetCause(value.get(), fixed.release());
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.get())), value.get());
  return false;
}

static bool is_for_async_with(PyTypeObject* type) {
  static PyObject *const enter = PyUnicode_InternFromString("__aenter__"), *const exit =
                                                                               PyUnicode_InternFromString("__aexit__");
  return _PyType_Lookup(type, enter) != nullptr && _PyType_Lookup(type, exit) != nullptr;
}

Ref special_method(PyObject* o, const char* name, const char* protocol) {
  Ref key = Ref::steal(PyUnicode_InternFromString(name));
  Ref method = Ref::borrow(_PyType_Lookup(Py_TYPE(o), key.get()));
  if (method) {
    descrgetfunc get = Py_TYPE(method.get())->tp_descr_get;
    return get == nullptr ? method : Ref::steal(get(method.get(), o, reinterpret_cast<PyObject*>(Py_TYPE(o))));
  }
  if (!PyErr_Occurred()) {
    const bool exit = std::string_view(name) == "__exit__";
    PyErr_Format(PyExc_TypeError, "'%.200s' object does not support the %s protocol%s%s", Py_TYPE(o)->tp_name, protocol,
                 exit                    ? " (missed __exit__ method)"
                 : compat::kExitIsMethod ? " (missed __enter__ method)"
                                         : "",
                 compat::kExitIsMethod && is_for_async_with(Py_TYPE(o))
                     ? " but it supports the asynchronous context manager protocol. Did you mean to use 'async with'?"
                     : "");
  }
  return {};
}

PyObject* enter_with(Interpreter& in, PyObject* manager, Ref& exit) {
  in.look_special(manager, "__enter__");
  in.look_special(manager, "__exit__");
  Ref enter = special_method(manager, "__enter__", "context manager");
  if (!enter) return nullptr;
  exit = special_method(manager, "__exit__", "context manager");
  if (!exit) return nullptr;
  PyObject* none[1] = {nullptr};
  return in.call(enter.get(), none + 1, 0, nullptr);
}

PyObject* load_special(Interpreter& in, PyObject* manager, const char* name) {
  in.look_special(manager, name);
  return special_method(manager, name, "context manager").release();
}

PyObject* exit_with(Interpreter& in, PyObject* exit, PyObject* self, PyObject* exception) {
  Ref traceback = Ref::steal(PyException_GetTraceback(exception));
  PyObject* args[5] = {nullptr, self, PyExceptionInstance_Class(exception), exception,
                       traceback ? traceback.get() : Py_None};
  return self != nullptr ? in.call(exit, args + 1, 4, nullptr) : in.call(exit, args + 2, 3, nullptr);
}

}  // namespace flashover::frame
