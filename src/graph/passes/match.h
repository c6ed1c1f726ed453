// Small questions that several rules ask.
#pragma once
#include <string_view>

#include "graph/passes/rewriter.h"

namespace flashover::graph {

// The value behind layout copies (prim.copy) ...
ValueId skip_copies(Rewriter& r, ValueId v);
// ... and behind conversions from a wider float: the f32 weight of an autocast cast.
ValueId skip_narrowing(Rewriter& r, ValueId v);
// The other operand order of a matrix: x with v = permute(x, [1, 0]), or a new permute.
ValueId transposed(Rewriter& r, ValueId v);
// A real scalar argument, or the 0-d tensor that a number became.
std::optional<double> known_number(Rewriter& r, const Arg& a);
bool all_const(const Sizes& sizes);  // positive constants
TensorType opaque_type(TensorType t);
TensorType dense_type(TensorType t);              // contiguous, offset 0
Sizes channels_last_strides(const Sizes& sizes);  // batch, channels, spatial...

// An activation that the oneDNN operators compute on the fly and that treats NaN as eager does (relu does not).
struct Activation {
  const char* attr = nullptr;  // "swish"
  std::string algorithm;       // "tanh" for gelu
};
std::optional<Activation> fused_activation(const Node& n);

}  // namespace flashover::graph
