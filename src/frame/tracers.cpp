// Asks CPython which listeners there are; sys.monitoring keeps its own in the interpreter's state and in code objects.
#include "frame/tracers.h"

#include <Python.h>

#include "frame/internals.h"

namespace flashover::frame {
namespace {

#if PY_VERSION_HEX >= 0x030C0000
// Tools 6 and 7 are what sys.setprofile and sys.settrace are made of.
constexpr unsigned kToolsOfMonitoring = 0x3F;

template <typename Monitors>
bool listens(const Monitors& monitors) {
  for (const auto tools : monitors.tools)
    if (tools & kToolsOfMonitoring) return true;
  return false;
}
#endif

}  // namespace

const char* active_tracer(PyCodeObject* code) {
  const PyThreadState* thread = PyThreadState_Get();
  if (thread->c_tracefunc != nullptr) return "a debugger or tracer is active (sys.settrace)";
#if PY_VERSION_HEX >= 0x030C0000
  if (listens(thread->interp->monitors) ||
      (code != nullptr && code->_co_monitoring != nullptr && listens(code->_co_monitoring->local_monitors)))
    return "a debugger or tracer is active (sys.monitoring)";
#else
  static_cast<void>(code);
#endif
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
