// The interpreter without a trace: the call runs for good.
#include "frame/frame.h"
#include "frame/interpret/interpreter.h"

namespace flashover::frame {

PyObject* interpret(PyObject* callable, PyObject* args, PyObject* kwargs, std::string* declined) {
  Interpreter in(nullptr);
  PyObject* result;
  {
    HookInstalled hook;
    result = PyObject_Call(callable, args, kwargs);
  }
  if (in.aborted()) {
    Py_CLEAR(result);
    PyErr_Clear();
    *declined = in.reason() + " at " + in.where();
    in.journal.undo();
    return nullptr;
  }
  in.journal.keep();
  return result;
}

}  // namespace flashover::frame
