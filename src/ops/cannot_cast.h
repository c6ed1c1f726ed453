// What an in-place operator, or one with out=, computes is of a dtype that the written tensor does not take.
#pragma once
#include "base/check.h"
#include "ops/types.h"

namespace flashover::ops {

// ATen raises then, but not all of its meta kernels do.
struct CannotCast : UserError {
  CannotCast(DType from, DType to)
      : UserError("the result does not fit the written tensor's dtype"), from(from), to(to) {}
  DType from, to;
};

}  // namespace flashover::ops
