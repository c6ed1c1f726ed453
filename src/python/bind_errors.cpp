// C++ exceptions as the Python classes of flashover.exc. The classes are made here so that C++ can raise them without
// importing the package.
#include <torch/csrc/Exceptions.h>

#include "base/boundary.h"
#include "base/check.h"
#include "base/interrupt.h"
#include "python/bind.h"

namespace flashover {
namespace py = pybind11;

namespace {

py::handle base, declined, user, internal;

// The exception that is being handled, if it is one of ours, as a Python error. Others pass.
void set_own_error() {
  try {
    throw;
  } catch (const Declined& e) {
    PyErr_SetString(declined.ptr(), e.what());
  } catch (const UserError& e) {
    PyErr_SetString(user.ptr(), e.what());
  } catch (const InternalError& e) {
    PyErr_SetString(internal.ptr(), e.what());
  } catch (const Interrupted&) {  // the handler's error is set
  }
}

// Whatever is being handled, as a Python error.
void set_python_error() noexcept {
  try {
    set_own_error();
  } catch (python_error& e) {
    e.restore();
  } catch (py::error_already_set& e) {
    e.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (...) {
    try {
      torch::translate_exception_to_python(std::current_exception());
    } catch (...) {  // there is no memory for its text
      PyErr_NoMemory();
    }
  }
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "flashover: a C++ exception without a Python error");
}

}  // namespace

void bind_errors(py::module_& m) {
  base = py::exception<std::runtime_error>(m, "FlashoverError", PyExc_RuntimeError).release();
  declined = py::exception<Declined>(m, "Declined", base).release();
  user = py::exception<UserError>(m, "UserError", base).release();
  internal = py::exception<InternalError>(m, "InternalError", base).release();
  tell_of_exception = set_python_error;
  py::register_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (...) {
      set_own_error();
    }
  });
}

}  // namespace flashover
