// The handlers of calls: call.cpp looks them up by what is called.
#pragma once
#include <algorithm>
#include <vector>

#include "frame/interpret/instructions.h"
#include "frame/interpret/interpreter.h"

namespace flashover::frame {

struct PythonCall {
  PyObject* f;
  PyObject* const* args;  // args[-1] is free to use
  size_t nargs;
  PyObject* kwnames;
  bool tail;  // its result is that of the running instruction
  PyTypeObject* type() const { return Py_TYPE(f); }
  size_t count() const { return nargs + keyword_count(kwnames); }
};

// New references; null with a Python error set. They throw Declined.
struct CallHandlers {
  // Interceptions take a call over whatever is called. True: `result` is that of the call (null with an error set).
  static bool marked(Interpreter& in, const PythonCall& c, PyObject** result);
  static bool polyfill(Interpreter& in, const PythonCall& c, PyObject** result);
  static bool checked_item(Interpreter& in, const PythonCall& c, PyObject** result);
  static bool logged(Interpreter& in, const PythonCall& c, PyObject** result);
  static bool arrays(Interpreter& in, const PythonCall& c, PyObject** result);
  // Those that only C callables come to.
  static bool tensor_makers(Interpreter& in, const PythonCall& c, PyObject** result);
  static bool numbers(Interpreter& in, const PythonCall& c, PyObject** result);

  // Handlers by what is called: Python code, or what leads to another callable.
  static PyObject* python_function(Interpreter& in, const PythonCall& c);
  static PyObject* bound_method(Interpreter& in, const PythonCall& c);
  static PyObject* instance_method(Interpreter& in, const PythonCall& c);
  // C callables.
  static PyObject* c_function(Interpreter& in, const PythonCall& c);
  static PyObject* method_descriptor(Interpreter& in, const PythonCall& c);
  static PyObject* tensor_method(Interpreter& in, const PythonCall& c);
  static PyObject* type(Interpreter& in, const PythonCall& c);
  static PyObject* method_wrapper(Interpreter& in, const PythonCall& c);
  static PyObject* wrapper_descriptor(Interpreter& in, const PythonCall& c);
  static PyObject* class_method_descriptor(Interpreter& in, const PythonCall& c);
  static PyObject* partial(Interpreter& in, const PythonCall& c);
  static bool cache_of_changing_numbers(Interpreter& in, const PythonCall& c, PyObject** result);
  static PyObject* lru_cache(Interpreter& in, const PythonCall& c);
  static PyObject* weak_reference(Interpreter& in, const PythonCall& c);
  static PyObject* script_function(Interpreter& in, const PythonCall& c);
  static PyObject* registered_operator(Interpreter& in, const PythonCall& c);
  static PyObject* numpy_ufunc(Interpreter& in, const PythonCall& c);
  static PyObject* numpy_function(Interpreter& in, const PythonCall& c);
  static PyObject* compiled_callable(Interpreter& in, const PythonCall& c);
  // Everything else: an instance whose class has a __call__.
  static PyObject* instance(Interpreter& in, const PythonCall& c);
};

// What calling a weak reference gave, which may be another object in the next call. Takes `target`; null stays null.
PyObject* take_weak_target(Interpreter& in, PyObject* reference, PyObject* target);
// tensor.item(), float(tensor): the tensor, else null.
PyObject* asked_for_item(PyObject* f, PyObject* const* args, size_t nargs, PyObject* kwnames);
bool holds_tensor(PyObject* o, int depth = 0);

// `first` before the arguments; [0] is free to use.
inline std::vector<PyObject*> with_first(PyObject* first, PyObject* const* args, size_t count) {
  std::vector<PyObject*> all(count + 2);
  all[1] = first;
  std::copy(args, args + count, all.begin() + 2);
  return all;
}

}  // namespace flashover::frame
