// A failure of the machine at this moment (no room, no descriptor, no process), perhaps not at the next: the call runs
// eager, and a later one tries again (entry/compile_call.cpp says how often).
#pragma once
#include "base/check.h"

namespace flashover {

struct PassingFailure : EnvironmentFailure {
  using EnvironmentFailure::EnvironmentFailure;
};

}  // namespace flashover
