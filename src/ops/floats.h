// Floats that are narrower in memory than the f32 that kernels compute in.
#pragma once
#include "ops/types.h"

namespace flashover {

inline bool is_eight_bit_float(DType d) { return d == DType::kF8E5M2 || d == DType::kF8E4M3; }
inline bool is_narrow_float(DType d) { return is_reduced(d) || is_eight_bit_float(d); }

}  // namespace flashover
