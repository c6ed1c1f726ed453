// Out of memory, by the type of an exception or by the text that others put into one of their own.
#include "trace/no_memory.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <cstring>
#include <new>

namespace flashover::trace {
namespace {

namespace py = pybind11;

constexpr const char* kText = "std::bad_alloc";

}  // namespace

bool says_no_memory(PyObject* type, PyObject* value) {
  if (type == nullptr) return false;
  if (PyErr_GivenExceptionMatches(type, PyExc_MemoryError)) return true;
  if (!PyErr_GivenExceptionMatches(type, PyExc_RuntimeError) || value == nullptr) return false;
  PyObject* const text = PyObject_Str(value);
  const char* utf8 = text != nullptr ? PyUnicode_AsUTF8(text) : nullptr;
  const bool found = utf8 != nullptr && std::strstr(utf8, kText) != nullptr;
  Py_XDECREF(text);
  if (PyErr_Occurred()) PyErr_Clear();
  return found;
}

bool says_no_memory(const std::exception& e) {
  if (dynamic_cast<const std::bad_alloc*>(&e) != nullptr) return true;
  if (const auto* error = dynamic_cast<const python_error*>(&e)) {
    const py::gil_scoped_acquire gil;
    return says_no_memory(error->type, error->value);
  }
  if (const auto* error = dynamic_cast<const py::error_already_set*>(&e)) {
    const py::gil_scoped_acquire gil;
    return says_no_memory(error->type().ptr(), error->value().ptr());
  }
  return std::strstr(e.what(), kText) != nullptr;
}

}  // namespace flashover::trace
