// What CPython's evaluator keeps of running frames and of the GIL, and how that differs between versions.
#pragma once
#include "frame/internals.h"

#include <internal/pycore_runtime.h>
#include <opcode.h>

namespace flashover::frame {

// The frame stands at an instruction that is not done. One that waits for a Python function's frame, or is suspended,
// has put down how deep its stack is.
inline bool is_amid_instruction(const _PyInterpreterFrame* f) {
#if PY_VERSION_HEX >= 0x030C0000
  if (f->owner == FRAME_OWNED_BY_CSTACK) return false;
#endif
  return f->stacktop < 0;
}

inline _gil_runtime_state& gil_state(PyInterpreterState* interp) {
#if PY_VERSION_HEX >= 0x030C0000
  return *interp->ceval.gil;
#else
  static_cast<void>(interp);
  return _PyRuntime.ceval.gil;
#endif
}

inline bool is_call(int op) {
#if PY_VERSION_HEX < 0x030C0000
  if (op == PRECALL) return true;
#endif
  return op == CALL || op == CALL_FUNCTION_EX;
}

}  // namespace flashover::frame
