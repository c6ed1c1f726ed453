// C++ exceptions as the Python classes of flashover.exc. The classes are made here so that C++ can raise them without
// importing the package.
#include "base/check.h"
#include "base/interrupt.h"
#include "python/bind.h"

namespace flashover {
namespace py = pybind11;

void bind_errors(py::module_& m) {
  static py::handle base = py::exception<std::runtime_error>(m, "FlashoverError", PyExc_RuntimeError).release();
  static py::handle declined = py::exception<Declined>(m, "Declined", base).release();
  static py::handle user = py::exception<UserError>(m, "UserError", base).release();
  static py::handle internal = py::exception<InternalError>(m, "InternalError", base).release();
  py::register_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const Declined& e) {
      PyErr_SetString(declined.ptr(), e.what());
    } catch (const UserError& e) {
      PyErr_SetString(user.ptr(), e.what());
    } catch (const InternalError& e) {
      PyErr_SetString(internal.ptr(), e.what());
    } catch (const Interrupted&) {  // the handler's error is set
    }
  });
}

}  // namespace flashover
