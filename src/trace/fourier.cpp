// Fourier transforms on the CPU: torch's shape functions say other strides than MKL's kernels give where several dims
// are transformed or the operand is not contiguous.
#include <ATen/Context.h>

#include <algorithm>

#include "ops/args.h"
#include "ops/names.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

using Dims = std::vector<int64_t>;

Dims by_falling_strides(Dims dims, const Sizes& strides) {
  std::stable_sort(dims.begin(), dims.end(), [&](int64_t a, int64_t b) {
    return sym::known_lt(strides[static_cast<size_t>(b)], strides[static_cast<size_t>(a)]);
  });
  return dims;
}

// Strides of a result: the kernel works on the other dims, in the operand's order, as one, and on `dims` behind it.
Sizes transformed_strides(const Sizes& sizes, const Sizes& operand_strides, const Dims& dims) {
  const size_t rank = sizes.size();
  Dims order;
  for (size_t d = 0; d < rank; ++d)
    if (std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) == dims.end())
      order.push_back(static_cast<int64_t>(d));
  const size_t others = order.size();
  order = by_falling_strides(std::move(order), operand_strides);
  order.insert(order.end(), dims.begin(), dims.end());
  Sizes strides(rank);
  sym::Expr stride = 1;
  for (size_t i = rank; i-- > 0;) {
    const auto d = static_cast<size_t>(order[i]);
    strides[d] = stride;
    // Contiguous strides count an empty dim as one; the other dims' number of elements does not.
    stride *= i >= others ? sym::max(sizes[d], 1) : sizes[d];
  }
  return strides;
}

Dims sorted_dims(const Dims& dims, const Sizes& operand_strides, bool but_last) {
  Dims out = by_falling_strides({dims.begin(), dims.end() - but_last}, operand_strides);
  if (but_last) out.push_back(dims.back());
  return out;
}

DType changed(DType d, bool complex) {
  static constexpr std::pair<DType, DType> kPairs[] = {
      {DType::kF16, DType::kC32}, {DType::kF32, DType::kC64}, {DType::kF64, DType::kC128}};
  for (const auto& [real, both] : kPairs)
    if ((complex ? real : both) == d) return complex ? both : real;
  return DType::kUndefined;
}

bool fourier(Recorder& recorder, OpFacts& facts, Stack& stack, size_t base) {
  std::vector<Arg> args = recorder.collect(facts, stack, base);
  const TraceImpl* x = recorder.operands().at(0).impl;
  const auto* listed = std::get_if<Sizes>(&args[1]);
  if (!x || !x->device().is_cpu() || !listed || listed->empty() || x->has_no_elements() ||
      !at::globalContext().hasMKL())
    return false;
  const sym::AskScope ask(recorder.sizes().empty() ? nullptr : &recorder.sizes());
  const std::string& name = facts.schema.name;
  const bool to_complex = name == op::_fft_r2c, to_real = name == op::_fft_c2r;
  TensorType type = recorder.graph().type(std::get<Ref>(args[0]).id);
  Sizes sizes = type.sizes, strides = type.strides;
  Dims dims;
  for (sym::Expr e : *listed) dims.push_back(ops::wrap_dim(e.value(), sizes.size()));
  if (to_complex || to_real) {
    type.dtype = changed(type.dtype, to_complex);
    if (type.dtype == DType::kUndefined) return false;
  } else if (!info(type.dtype).complex) {
    return false;
  }
  sym::Expr& last = sizes[static_cast<size_t>(dims.back())];
  if (to_real) {
    // All dims but the last by a complex transform, into memory of its own.
    if (const Dims first(dims.begin(), dims.end() - 1); !first.empty())
      strides = transformed_strides(sizes, strides, sorted_dims(first, strides, false));
    last = std::get<sym::Expr>(args[3]);
    dims = {dims.back()};
  } else {
    if (to_complex && std::get<bool>(args[3])) last = sym::floordiv(last, 2) + 1;
    dims = sorted_dims(dims, strides, to_complex);
  }
  if (!sym::known_le(1, last)) return false;  // ATen words the error
  type.sizes = sizes;
  type.strides = transformed_strides(sizes, strides, dims);
  type.offset = 0;
  ++recorder.counters().ops;
  ++recorder.counters().own_rules;
  std::vector<TensorType> outs = {std::move(type)};
  const ValueId value = recorder.add_node(facts.op, std::move(args), std::move(outs)).outs[0];
  torch::jit::drop(stack, stack.size() - base);
  stack.emplace_back(recorder.fresh(value));
  return true;
}

}  // namespace

Special fourier_of(std::string_view name) {
  return name == op::_fft_r2c || name == op::_fft_c2r || name == op::_fft_c2c ? fourier : nullptr;
}

}  // namespace flashover::trace
