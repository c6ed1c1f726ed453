// PEP 523: while a capture runs, frames of its thread go to the interpreter; everybody else's go on as before.
#include "frame/interpret/interpreter.h"

namespace flashover::frame {
namespace {

thread_local Interpreter* active = nullptr;
int installed = 0;
_PyFrameEvalFunction previous = nullptr;

PyObject* on_frame(PyThreadState* tstate, _PyInterpreterFrame* frame, int throwflag) {
  Interpreter* interpreter = active;
  if (interpreter == nullptr || interpreter->uninterpreted > 0 || trace::internal_call()) {
    _PyFrameEvalFunction next = previous;
    return next != nullptr && next != on_frame ? next(tstate, frame, throwflag)
                                               : _PyEval_EvalFrameDefault(tstate, frame, throwflag);
  }
  return interpreter->run_frame(tstate, frame, throwflag);
}

}  // namespace

Interpreter* Interpreter::current() { return active; }

Interpreter::Interpreter(trace::Session* s) : recorder(s), session(s), outer_(active) {
  recorder.location = [this] { return location(); };
  recorder.location_key = [this] { return location_key(); };
  active = this;
}

Interpreter::~Interpreter() {
  journal.undo();
  active = outer_;
}

void install_hook() {
  PyInterpreterState* interp = PyInterpreterState_Get();
  if (installed++ > 0) return;
  previous = _PyInterpreterState_GetEvalFrameFunc(interp);
  _PyInterpreterState_SetEvalFrameFunc(interp, on_frame);
}

void remove_hook() {
  if (--installed > 0) return;
  _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), previous);
}

}  // namespace flashover::frame
