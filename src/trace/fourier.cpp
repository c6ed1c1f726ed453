// Fourier transforms on the CPU: torch's shape functions say other strides than MKL's kernels give where several dims
// are transformed or the operand is not contiguous.
#include <ATen/Context.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "ops/args.h"
#include "ops/names.h"
#include "trace/recorder.h"

namespace flashover::trace {
namespace {

using Dims = std::vector<int64_t>;

// Strides of a result: the kernel works on the other dims, in the operand's order, as one, and on `dims` behind it.
Dims transformed_strides(const Dims& sizes, const Dims& operand_strides, const Dims& dims) {
  const size_t rank = sizes.size(), others = rank - dims.size();
  std::vector<bool> is_transformed(rank);
  for (int64_t d : dims) is_transformed[static_cast<size_t>(d)] = true;
  Dims order(rank);
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto end =
      std::partition(order.begin(), order.end(), [&](int64_t d) { return !is_transformed[static_cast<size_t>(d)]; });
  std::sort(order.begin(), end, [&](int64_t a, int64_t b) {
    return operand_strides[static_cast<size_t>(a)] > operand_strides[static_cast<size_t>(b)];
  });
  std::copy(dims.begin(), dims.end(), end);
  Dims strides(rank);
  int64_t stride = 1;
  for (size_t i = rank; i-- > 0;) {
    const auto d = static_cast<size_t>(order[i]);
    strides[d] = stride;
    // Contiguous strides count an empty dim as one; the other dims' number of elements does not.
    stride *= i >= others ? std::max<int64_t>(sizes[d], 1) : sizes[d];
  }
  return strides;
}

Dims sorted_dims(Dims dims, const Dims& operand_strides, bool but_last) {
  std::sort(dims.begin(), dims.end() - but_last, [&](int64_t a, int64_t b) {
    return operand_strides[static_cast<size_t>(a)] > operand_strides[static_cast<size_t>(b)];
  });
  return dims;
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
  if (!x || !x->device().is_cpu() || !listed || listed->empty() || x->numel() == 0 || !at::globalContext().hasMKL())
    return false;
  const std::string& name = facts.schema.name;
  const bool to_complex = name == op::_fft_r2c, to_real = name == op::_fft_c2r;
  TensorType type = recorder.graph().type(std::get<Ref>(args[0]).id);
  Dims sizes = x->sizes().vec(), strides = x->strides().vec(), dims;
  for (sym::Expr e : *listed) dims.push_back(ops::wrap_dim(e.value(), sizes.size()));
  if (to_complex || to_real) {
    type.dtype = changed(type.dtype, to_complex);
    if (type.dtype == DType::kUndefined) return false;
  } else if (!info(type.dtype).complex) {
    return false;
  }
  int64_t& last = sizes[static_cast<size_t>(dims.back())];
  if (to_real) {
    // All dims but the last by a complex transform, into memory of its own.
    if (const Dims first(dims.begin(), dims.end() - 1); !first.empty())
      strides = transformed_strides(sizes, strides, sorted_dims(first, strides, false));
    last = std::get<sym::Expr>(args[3]).value();
    dims = {dims.back()};
  } else {
    if (to_complex && std::get<bool>(args[3])) last = last / 2 + 1;
    dims = sorted_dims(dims, strides, to_complex);
  }
  if (last < 1) return false;  // ATen words the error
  strides = transformed_strides(sizes, strides, dims);
  type.sizes.assign(sizes.begin(), sizes.end());
  type.strides.assign(strides.begin(), strides.end());
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
