// An extern step, made ready once: operator handle, constant arguments as values, the places where tensors go.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <cstdint>

#include <string>
#include <vector>

#include "plan/plan.h"
#include "torch/convert.h"

namespace flashover::run {

// The geometry that a tensor must have for the kernels that were generated for it.
struct Shape {
  at::ScalarType dtype = at::ScalarType::Undefined;
  c10::Device device = c10::Device(c10::kCPU);
  at::IntArrayRef sizes, strides;  // in Program::numbers
  bool opaque = false;
  // numbers: the sizes, then the strides.
  Shape(const TensorType& t, const int64_t* numbers);
  bool fits(const at::Tensor& t) const;          // dtype, sizes and device
  bool same_strides(const at::Tensor& t) const;  // where they matter: dimensions of size 1 and empty tensors have none
  at::Tensor empty() const;                      // CUDA: on the current stream; its device must be the current one
};

// A Shape's numbers, with a value for each expression of the type.
template <typename ValueOf>
std::vector<int64_t> shape_numbers(const TensorType& t, const ValueOf& value_of) {
  std::vector<int64_t> out;
  for (const Sizes* list : {&t.sizes, &t.strides})
    for (sym::Expr e : *list) out.push_back(value_of(e));
  return out;
}

struct ExternCall {
  struct Argument {
    enum class Kind : uint8_t { kConstant, kTensor, kScalar, kList, kOptionalList } kind = Kind::kConstant;
    c10::IValue constant;
    plan::TensorId tensor = -1;
    std::vector<plan::TensorId> list;
    bool clone = false;  // "functional.<op>": the operator writes a copy of it, which is one more result
  };
  const aten::Operator* op = nullptr;
  std::vector<Argument> arguments;
  std::vector<plan::TensorId> writes;
  bool out_variant = false;
  bool on_clones = false;
  bool data_sized = false;
  bool begins = false;    // a collective: its results are filled while the steps behind it run
  bool may_keep = false;  // a custom operator: may hold on to its arguments after it returned
};

// Throws Declined when torch has no such operator or an argument does not fit its schema.
ExternCall prepare(const plan::Step& s);

// `base` seen as sizes/strides, `elements` behind its first element; below autograd, shares storage.
at::Tensor view_of(const at::Tensor& base, at::ScalarType dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                   int64_t elements);

}  // namespace flashover::run
