// What CPython's evaluator keeps of running frames and of the GIL.
#pragma once
#include "compat/frames.h"

namespace flashover::compat {

// The frame stands at an instruction that is not done. One that waits for a Python function's frame, or is suspended,
// has put down how deep its stack is.
inline bool is_amid_instruction(const _PyInterpreterFrame* f) { return !is_of_c(f) && f->stacktop < 0; }

inline _gil_runtime_state& gil_state([[maybe_unused]] PyInterpreterState* interp) {
#if PY_VERSION_HEX >= 0x030C0000
  return *interp->ceval.gil;
#else
  return _PyRuntime.ceval.gil;
#endif
}

// What listens to the code's events beside sys.setprofile and sys.settrace: tools of sys.monitoring (3.12 on).
#if PY_VERSION_HEX >= 0x030C0000
// Tools 6 and 7 are what sys.setprofile and sys.settrace are made of.
constexpr unsigned kToolsOfMonitoring = 0x3F;

template <typename Monitors>
bool listens(const Monitors& monitors) {
  for (const auto tools : monitors.tools)
    if (tools & kToolsOfMonitoring) return true;
  return false;
}
inline bool is_monitored(const PyThreadState* thread, PyCodeObject* code) {
  return listens(thread->interp->monitors) ||
         (code != nullptr && code->_co_monitoring != nullptr && listens(code->_co_monitoring->local_monitors));
}
#else
inline bool is_monitored(const PyThreadState*, PyCodeObject*) { return false; }
#endif

}  // namespace flashover::compat
