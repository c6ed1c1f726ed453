// The neutral element of a reduction as a number of its dtype: what a fold over nothing gives, and what stands in for
// elements that a fold leaves out.
#pragma once
#include <cstdint>

#include "loops/loops.h"

namespace flashover::kernel {

struct Neutral {
  double number = 0;    // of floats
  int64_t integer = 0;  // of integers and bool
};
Neutral neutral(loops::Reduce kind, DType d);

}  // namespace flashover::kernel
