// Calls of flashover._torch_told, which knows torch's counters and callbacks.
#include "entry/torch_told.h"

#include <Python.h>

#include "guards/objects.h"

namespace flashover::entry {
namespace {

// A function of flashover._torch_told, borrowed; null where there is nothing to tell.
PyObject* teller(const char* name) {
  static PyObject *const all = PyImport_GetModuleDict(), *const dynamo = PyUnicode_InternFromString("torch._dynamo");
  if (guards::dict_get(all, dynamo) == nullptr) return nullptr;
  static PyObject* const globals = [] {
    PyObject* module = PyImport_ImportModule("flashover._torch_told");
    return module != nullptr ? PyModule_GetDict(module) : nullptr;  // the module is never unloaded
  }();
  return globals != nullptr ? PyDict_GetItemString(globals, name) : nullptr;
}

// Counting is no reason for a compilation to fail.
template <typename... Arguments>
void count(const char* name, const char* format, Arguments... arguments) {
  PyObject* function = teller(name);
  PyObject* result = function != nullptr ? PyObject_CallFunction(function, format, arguments...) : nullptr;
  if (result == nullptr && PyErr_Occurred()) PyErr_WriteUnraisable(function);
  Py_XDECREF(result);
}

}  // namespace

ToldCompilation::ToldCompilation() {
  PyObject* function = teller("begin");
  if (function == nullptr) {
    PyErr_Clear();
    return;
  }
  ending_ = PyObject_CallNoArgs(function);
  raised_ = ending_ == nullptr;
  if (ending_ == Py_None) Py_CLEAR(ending_);
}

ToldCompilation::~ToldCompilation() {
  if (ending_ == nullptr) return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject* result = PyObject_CallNoArgs(ending_);
  if (result == nullptr) PyErr_WriteUnraisable(ending_);
  Py_XDECREF(result);
  Py_DECREF(ending_);
  PyErr_Restore(type, value, trace);
}

void tell_graph(size_t calls) { count("graph", "n", static_cast<Py_ssize_t>(calls)); }
void tell_break(const std::string& reason) { count("graph_break", "s", reason.c_str()); }
void tell_frame(bool compiled) { count("frame", "i", compiled ? 1 : 0); }

}  // namespace flashover::entry
