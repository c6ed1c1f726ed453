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

namespace {

// The default device's mode, through which all of torch's own functions go while there is one. C code calls it, and
// hands on what it gives as what the function itself gave.
bool is_default_device_mode(PyCodeObject* co) {
  static PyObject* const name = PyUnicode_InternFromString("__torch_function__");
  if (co->co_name != name) return false;
  PyObject* mode = of_module("torch.utils._device", "DeviceContext");
  if (mode == nullptr || !PyType_Check(mode)) return false;
  PyObject* f = PyDict_GetItemWithError(type_dict(reinterpret_cast<PyTypeObject*>(mode)), name);
  return f != nullptr && PyFunction_Check(f) && PyFunction_GET_CODE(f) == reinterpret_cast<PyObject*>(co);
}

}  // namespace

// What C code gets may be looked at there, where nobody sees it. Sizes that a function of torch gives are SymInts there.
// New reference.
PyObject* Interpreter::given_to_c(PyCodeObject* co, PyObject* o) {
  Numbers& numbers = recorder.numbers;
  if (numbers.holds(o) && numbers.all_sizes(o) && is_default_device_mode(co)) {
    Ref symbols = Ref::steal(numbers.symbols(o));
    if (Py_TYPE(o) == known_types().size)
      return PyObject_CallOneArg(reinterpret_cast<PyObject*>(Py_TYPE(o)), symbols.get());
    return symbols.release();
  }
  numbers.read_deep(o);
  return Py_NewRef(o);
}

namespace {
constexpr int kStopIterationError = 3, kUnaryPositive = 5, kListToTuple = 6;
}

bool knows_intrinsic(int which) {
  return which == kStopIterationError || which == kUnaryPositive || which == kListToTuple;
}

PyObject* intrinsic(int which, PyObject* v) {
  switch (which) {
    case kStopIterationError: {  // one that leaves a generator becomes a RuntimeError
      if (!PyErr_GivenExceptionMatches(v, PyExc_StopIteration)) return Py_NewRef(v);
      Ref error = Ref::steal(PyObject_CallFunction(PyExc_RuntimeError, "s", "generator raised StopIteration"));
      if (!error) return nullptr;
      PyException_SetCause(error.get(), Py_NewRef(v));
      PyException_SetContext(error.get(), Py_NewRef(v));
      return error.release();
    }
    case kUnaryPositive:
      return PyNumber_Positive(v);
    default:
      return PyList_AsTuple(v);
  }
}

}  // namespace flashover::frame
