// How frames are left: one that is given up before it ran, and what the interpreter's small helpers give.
#include "frame/interpret/instructions.h"

#include "trace/trace.h"

namespace flashover::frame {

PyObject* decline_exception() {
  static PyObject* const type = PyErr_NewException("flashover.Decline", PyExc_BaseException, nullptr);
  return type;
}

PyObject* abandon_frame(PyThreadState* tstate, _PyInterpreterFrame* frame) {
  // (From 3.12 on the frame is not linked here; the caller's frame is current.)
  if (!PyErr_Occurred()) {
    // A finalizer that runs while the capture is torn down has no caller to report to.
    const bool finalizer = PyUnicode_CompareWithASCIIString(code_of(frame)->co_name, "__del__") == 0;
    Interpreter::current()->abort("");
    if (finalizer) {
      PyErr_Clear();
      finish_frame(tstate, frame);
      return Py_NewRef(Py_None);
    }
  }
  finish_frame(tstate, frame);
  return nullptr;
}

PyObject* intrinsic(int which, PyObject* v) {
  switch (which) {
    case 3: {  // STOPITERATION_ERROR: a StopIteration that leaves a generator becomes a RuntimeError
      if (!PyErr_GivenExceptionMatches(v, PyExc_StopIteration)) return Py_NewRef(v);
      Ref error = Ref::steal(PyObject_CallFunction(PyExc_RuntimeError, "s", "generator raised StopIteration"));
      if (!error) return nullptr;
      PyException_SetCause(error.get(), Py_NewRef(v));
      PyException_SetContext(error.get(), Py_NewRef(v));
      return error.release();
    }
    case 5:  // UNARY_POSITIVE
      return PyNumber_Positive(v);
    case 6:  // LIST_TO_TUPLE
      return PyList_AsTuple(v);
    default:
      throw Declined("an intrinsic that the interpreter does not know: " + std::to_string(which));
  }
}

}  // namespace flashover::frame
