// Where a tensor's elements end.
#pragma once
#include "ops/types.h"

namespace flashover::ops {

// Of a tensor with elements and without negative strides: where its last element lies, in elements of its memory.
inline sym::Expr last_element(const TensorType& t) {
  sym::Expr out = t.offset;
  for (size_t d = 0; d < t.rank(); ++d) out += (t.sizes[d] - 1) * t.strides[d];
  return out;
}

}  // namespace flashover::ops
