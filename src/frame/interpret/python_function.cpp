// Python functions that the interpreter makes itself: code that CPython would call from C comes to the interpreter as
// the frame of such a function.
#include "frame/interpret/instructions.h"
#include "frame/interpret/interpreter.h"

namespace flashover::frame {

PyObject* function_of_ours(const char* source, const char* name) {
  Ref code = Ref::steal(Py_CompileString(source, "<flashover>", Py_file_input));
  Ref names = Ref::steal(PyDict_New());
  PyDict_SetItemString(names.get(), "__builtins__", PyEval_GetBuiltins());
  Ref done = Ref::steal(code ? PyEval_EvalCode(code.get(), names.get(), names.get()) : nullptr);
  PyErr_Clear();
  return Py_XNewRef(PyDict_GetItemString(names.get(), name));
}

namespace {

PyObject* maker_of_functions() {
  static PyObject* const make = function_of_ours(
      "def make(f):\n    def call(*args, **kwargs):\n        return f(*args, **kwargs)\n    return call\n", "make");
  return make;
}

}  // namespace

bool is_code_of_ours(PyCodeObject* code) {
  static PyCodeObject* const own = [] {
    PyObject* make = maker_of_functions();
    PyObject* constants =
        make != nullptr ? reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(make))->co_consts : nullptr;
    for (Py_ssize_t i = 0; constants != nullptr && i < PyTuple_GET_SIZE(constants); ++i)
      if (PyCode_Check(PyTuple_GET_ITEM(constants, i)))
        return reinterpret_cast<PyCodeObject*>(PyTuple_GET_ITEM(constants, i));
    return static_cast<PyCodeObject*>(nullptr);
  }();
  return own != nullptr && code == own;
}

PyObject* behind_python_function(PyObject* f) {
  if (!PyFunction_Check(f) || !is_code_of_ours(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(f)))) return f;
  return PyCell_GET(PyTuple_GET_ITEM(PyFunction_GET_CLOSURE(f), 0));
}

// A Python function around `f`: called from C, its frame comes to the interpreter, which calls `f` as it does
// elsewhere.
Ref Interpreter::as_python_function(PyObject* f) {
  ++uninterpreted;
  PyObject* const make = maker_of_functions();
  Ref function = Ref::steal(make != nullptr ? PyObject_CallOneArg(make, f) : nullptr);
  --uninterpreted;
  if (!function) unknown_call(f);
  recorder.fresh_function(function.get());
  return function;
}

}  // namespace flashover::frame
