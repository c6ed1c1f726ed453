// Walks over the tensors among a call's arguments or results.
#pragma once
#include <algorithm>
#include <optional>
#include <utility>

#include "torch/convert.h"
#include "torch/size_node.h"

namespace flashover::trace {

template <typename F>
void for_each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    f(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef())
      if (element.isTensor()) f(element.toTensor());
  }
}

// No size, stride or offset is a symbol of somebody else's.
inline bool has_known_geometry(const at::Tensor& t) {
  const auto known = [](const c10::SymInt& s) { return aten::expr_of(s).has_value(); };
  return std::ranges::all_of(t.sym_sizes(), known) && std::ranges::all_of(t.sym_strides(), known) &&
         known(t.sym_storage_offset());
}

// The tensor with another one in its place, in an argument or in a list of them.
template <typename F>
c10::IValue map_tensors(const c10::IValue& value, const aten::ArgSpec& spec, F&& f) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(f(value.toTensor())) : value;
  if (spec.kind != aten::ArgKind::kTensorList || !value.isList()) return value;
  if (spec.list_of_optional) {
    c10::List<std::optional<at::Tensor>> out;
    for (const c10::IValue& element : value.toListRef())
      out.push_back(element.isTensor() && element.toTensor().defined()
                        ? std::optional<at::Tensor>(f(element.toTensor()))
                        : std::nullopt);
    return out;
  }
  c10::List<at::Tensor> out;
  for (const c10::IValue& element : value.toListRef())
    out.push_back(element.toTensor().defined() ? f(element.toTensor()) : at::Tensor());
  return out;
}

}  // namespace flashover::trace
