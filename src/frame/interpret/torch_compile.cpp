// What belongs to torch.compile inside of a capture: functions that it wrapped, its switch for graph breaks, and the
// functions that users put in the place of others for it.
#include <string_view>

#include "frame/bytecode/code_file.h"
#include "frame/interpret/interpreter.h"

namespace flashover::frame {
namespace {

PyObject* closed_over(PyObject* function, const char* name) {  // borrowed; null: no such variable, or an empty one
  PyObject* closure = PyFunction_GET_CLOSURE(function);
  Ref names = Ref::steal(PyCode_GetFreevars(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function))));
  if (!names) PyErr_Clear();
  for (Py_ssize_t i = 0; names && closure != nullptr && i < PyTuple_GET_SIZE(names.get()); ++i)
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names.get(), i), name) == 0)
      return PyCell_GET(PyTuple_GET_ITEM(closure, i));
  return nullptr;
}

}  // namespace

bool is_wrapper_of_torch_compile(PyCodeObject* code) {
  static PyObject* const name = PyUnicode_InternFromString("compile_wrapper");
  if (code->co_name != name && PyUnicode_Compare(code->co_name, name) != 0) return false;
  return file_of(code).ends_with("torch/_dynamo/eval_frame.py");
}

// The function that torch.compile was given is part of what is compiled here. Where that was with fullgraph=True, a
// graph break in it is an error.
PyObject* Interpreter::call_inside_torch_compile(_PyInterpreterFrame* frame) {
  static PyObject* const inline_name = PyUnicode_InternFromString("_torchdynamo_inline");
  PyObject* const wrapper = function_of(frame);
  Ref original = Ref::steal(get_attr(wrapper, inline_name));
  if (!original) return nullptr;
  PyObject* context = closed_over(wrapper, "self");
  Ref fullgraph = Ref::steal(context != nullptr ? PyObject_GetAttrString(context, "fullgraph") : nullptr);
  PyErr_Clear();
  const int more = fullgraph.get() == Py_True ? 1 : 0;
  inner_fullgraph_ += more;
  PyObject* result = call_substitute(frame, original.get());
  inner_fullgraph_ -= more;
  return result;
}

// torch._dynamo.error_on_graph_break(True) is in effect, or a function that torch.compile(fullgraph=True) wrapped runs.
bool Interpreter::breaks_are_errors() const {
  return inner_fullgraph_ > 0 || of_module("torch._dynamo.utils", "_error_on_graph_break") == Py_True;
}

PyObject* Interpreter::users_polyfill(PyObject* f) const {
  PyObject* polyfill = polyfill_of(f);
  // In the polyfill itself the function is what it is.
  for (const ActiveFrame* a = top_; polyfill != nullptr && a != nullptr; a = a->caller)
    if (reinterpret_cast<PyObject*>(code_of(a->frame)) == PyFunction_GET_CODE(polyfill)) return nullptr;
  return polyfill;
}

}  // namespace flashover::frame
