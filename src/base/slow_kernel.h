// What a build throws for one kernel that takes the compiler too long; it says nothing about other kernels.
#pragma once
#include "base/check.h"

namespace flashover {

struct SlowKernel : Declined {
  using Declined::Declined;
};

}  // namespace flashover
