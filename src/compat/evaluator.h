// What CPython's evaluator keeps of running frames and of the GIL.
#pragma once
#include <vector>

#include "compat/frames.h"

namespace flashover::compat {

// The frame stands at an instruction that is not done. One that waits for a Python function's frame, or is suspended,
// has put down how deep its stack is.
inline bool is_amid_instruction(const _PyInterpreterFrame* f) {
#if PY_VERSION_HEX >= 0x030E0000
  return !is_of_c(f) && f->owner != FRAME_OWNED_BY_FRAME_OBJECT;
#else
  return !is_of_c(f) && f->stacktop < 0;
#endif
}

// All that the frame's stack has room for: addresses that may be of anything.
inline std::vector<PyObject*> addresses_on_stack(const _PyInterpreterFrame* f) {
  std::vector<PyObject*> found;
  const Slot* const bottom = f->localsplus + code_of(f)->co_nlocalsplus;
  for (const Slot* slot = bottom; slot < bottom + code_of(f)->co_stacksize; ++slot) found.push_back(object_in(*slot));
  return found;
}

// What a LOAD_COMMON_CONSTANT loads (3.14). Borrowed; null: there is none of this number.
inline PyObject* common_constant([[maybe_unused]] int which) {
#if PY_VERSION_HEX >= 0x030E0000
  if (which >= 0 && which < NUM_COMMON_CONSTANTS) return PyInterpreterState_Get()->common_consts[which];
#endif
  return nullptr;
}

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
