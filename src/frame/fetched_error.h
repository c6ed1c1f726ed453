// Python's error, taken out of the interpreter for as long as this lives. What is thrown meanwhile drops it: with its
// traceback it holds frames, and all that is in them.
#pragma once
#include <Python.h>

#include <utility>

namespace flashover::frame {

class FetchedError {
 public:
  FetchedError() { PyErr_Fetch(&type, &value, &trace); }
  ~FetchedError() {
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
  }
  FetchedError(const FetchedError&) = delete;
  FetchedError& operator=(const FetchedError&) = delete;

  void normalize() { PyErr_NormalizeException(&type, &value, &trace); }
  void restore() {
    PyErr_Restore(std::exchange(type, nullptr), std::exchange(value, nullptr), std::exchange(trace, nullptr));
  }

  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
};

}  // namespace flashover::frame
