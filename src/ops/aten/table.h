// The rows of the aten operators that have a rule, one file per family.
//
// A rule (ops::InferRule) says what eager on CPU returns: dtype, sizes, strides. It may always answer "false", and must
// when it is not certain. Layout decisions (TensorIterator's permutation, channels-last outputs) need numbers; rules
// answer false for symbolic strides that they cannot prove dense.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace flashover::ops::aten {

class Table {
 public:
  explicit Table(std::vector<Row>& rows) : rows_(rows) {}
  Row& add(std::string_view name, OpKind kind, InferRule infer);  // "add.Tensor" -> a row for aten.add.Tensor

 private:
  std::vector<Row>& rows_;
};
const char* keep(std::string text);  // lives as long as the process, as rows do

// In-place variant of a rule: same promotion and shape check, result is `self` as it was.
bool infer_inplace(const InferContext& in, std::vector<TensorType>& outs, InferRule functional);
// out= variant with one out tensor, the last argument, which already has the right sizes. Not `casts`: ATen takes an out
// tensor of the result's dtype only.
bool infer_out(const InferContext& in, std::vector<TensorType>& outs, InferRule functional, bool casts);
template <InferRule F>
bool inplace(const InferContext& in, std::vector<TensorType>& outs) {
  return infer_inplace(in, outs, F);
}
template <InferRule F, bool casts>
bool out_variant(const InferContext& in, std::vector<TensorType>& outs) {
  return infer_out(in, outs, F, casts);
}

// Of an in-place operator whose twin has another overload name.
template <InferRule F>
void add_inplace(Table& t, std::string_view name, std::string_view functional, OpKind kind = OpKind::kPointwise) {
  Row& row = t.add(name, kind, inplace<F>);
  row.functional = keep("aten." + std::string(functional));
  row.mutates = 1;
}
// "add", "Tensor" -> aten.add.Tensor and aten.add_.Tensor
template <InferRule F>
void add_with_inplace(Table& t, std::string_view op, std::string_view overload, OpKind kind = OpKind::kPointwise) {
  std::string name = std::string(op) + "." + std::string(overload);
  t.add(name, kind, F);
  add_inplace<F>(t, std::string(op) + "_." + std::string(overload), name, kind);
}
template <InferRule F, bool casts>
void add_out(Table& t, std::string_view op, std::string_view overload, std::string_view out_overload, uint32_t out_arg,
             OpKind kind = OpKind::kPointwise) {
  Row& row = t.add(std::string(op) + "." + std::string(out_overload), kind, out_variant<F, casts>);
  row.functional = keep("aten." + std::string(op) + "." + std::string(overload));
  row.drops_mutated = true;
  row.mutates = 1u << out_arg;
}

void add_pointwise(Table& t);
void add_factories(Table& t);
void add_copies(Table& t);
void add_views(Table& t);
void add_reductions(Table& t);
void add_matmuls(Table& t);
void add_norms(Table& t);
void add_windows(Table& t);   // convolution, pooling, upsampling
void add_indexing(Table& t);  // gather, scatter, cat, pad, sort, embedding ...
void add_attention(Table& t);
void add_random(Table& t);
void add_losses(Table& t);
void add_backward(Table& t);
void add_rare(Table& t);

}  // namespace flashover::ops::aten
