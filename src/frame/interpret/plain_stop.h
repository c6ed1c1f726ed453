// Where a plain run (PlainRun) may end: before an instruction that is worth a capture, and the loads of its operands.
#pragma once
#include "frame/interpret/interpreter.h"

namespace flashover::frame {

struct PlainStop {
  int mark = -1;  // since here (with the stack at mark_sp) operands were only loaded
  PyObject** mark_sp = nullptr;
  // `has_names`: a KW_NAMES waits for its call.
  bool ends_at(int op, bool has_names, int pc, PyObject** sp);
};

}  // namespace flashover::frame
