// Small questions that several rules ask.
#pragma once
#include <string_view>

#include "graph/rewrite/rewriter.h"

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
bool moves_elements_only(const Node& n);  // permute, reshape, broadcast
// Whether a copy of this weight finds room, in bytes, and takes it. Only copies on a CPU need any.
bool take_room(const TensorType& weight, int64_t& room);
TensorType dense_type(TensorType t);                                     // contiguous, offset 0
Sizes channels_last_strides(const Sizes& sizes);                         // batch, channels, spatial...
TensorType channels_last(TensorType t);                                  // the same, offset 0
ValueId in_strides(Rewriter& r, ValueId v, const TensorType& expected);  // a copy unless it lies so
// Contiguous: for operators that look at no strides, as oneDNN's do at a bias's.
ValueId dense_value(Rewriter& r, ValueId v);
Arg dense_value(Rewriter& r, std::optional<ValueId> v);  // or nothing
bool all_are(const Arg& list, int64_t n);
// The gradient of a convolution's bias, a sum of the result's like any other.
ValueId bias_gradient(Rewriter& r, ValueId grad, DType dtype);

// An activation that the oneDNN operators compute on the fly and that treats NaN as eager does (relu does not).
struct FusedActivation {
  const char* attr = nullptr;  // "swish"
  std::string algorithm;       // "tanh" for gelu
};
std::optional<FusedActivation> fused_activation(const Node& n);
// As the operators of ours call it. Their relu keeps NaN.
std::optional<std::string> own_activation(const Node& n);

}  // namespace flashover::graph
