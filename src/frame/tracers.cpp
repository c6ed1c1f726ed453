// Asks CPython which listeners there are; sys.monitoring keeps its own in the interpreter's state and in code objects.
#include "frame/tracers.h"

#include <Python.h>

#include "compat/evaluator.h"
#include "frame/internals.h"

namespace flashover::frame {
const char* active_tracer(PyCodeObject* code) {
  const PyThreadState* thread = PyThreadState_Get();
  if (thread->c_tracefunc != nullptr) return "a debugger or tracer is active (sys.settrace)";
  if (compat::is_monitored(thread, code)) return "a debugger or tracer is active (sys.monitoring)";
  return nullptr;
}

bool profiled() { return PyThreadState_Get()->c_profilefunc != nullptr; }

WithoutProfiler::WithoutProfiler() : active_(profiled()) {
  if (active_) PyThreadState_EnterTracing(PyThreadState_Get());
}
WithoutProfiler::~WithoutProfiler() {
  if (active_) PyThreadState_LeaveTracing(PyThreadState_Get());
}

}  // namespace flashover::frame
