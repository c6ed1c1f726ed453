// Rewrite rules from library calls to sums over what is unpacked on the way.
#include "graph/passes/low_precision.h"

#include <algorithm>

#include "graph/analysis/unpacking.h"
#include "graph/rewrite/match.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

constexpr int64_t kLeastInner = 64;
constexpr int64_t kLeastElements = 4096;  // below, the library's call is what costs
bool adds_up_in_f32(DType d) { return d == DType::kF32 || is_reduced(d); }

// The whole numbers of 8 bits that the matrix is, which are the same in 16-bit floats; kNoValue: it is another.
ValueId whole_numbers(Rewriter& r, ValueId matrix) {
  const Node* n = r.def(matrix, Prim::convert);
  if (!n) n = r.def(matrix, op::_to_copy);
  const ValueId from = n ? ops::as_value(n->args[0]) : matrix;
  const DType dtype = r.b.dtype(from);
  return dtype == DType::kI8 || dtype == DType::kU8 ? from : kNoValue;
}

// Rows from which the library's product is quicker, though it reads more: unpacking is done again for each row
// (docs/benchmarks/cpu.md). On a GPU a row after the first reads what a cache does not hold, and the tensor cores take
// two rows of 16 bits with weights of 8 (compile/products.h).
int64_t most_rows(Rewriter& r, const TensorType& x, ValueId matrix) {
  if (x.device.type != DeviceType::kCPU) return is_reduced(x.dtype) && is_widened(definitions(r), matrix) ? 1 : 2;
  return x.dtype == DType::kF32 && whole_numbers(r, matrix) != kNoValue ? 4 : 1;
}

ValueId unpacked(Rewriter& r, ValueId matrix) {  // [columns, inner] in f32
  const ValueId whole = whole_numbers(r, matrix);
  return r.b.convert(transposed(r, whole != kNoValue ? whole : matrix), DType::kF32);
}

// x [rows, inner] @ matrix [inner, columns] in f32.
ValueId sums_of_few_rows(Rewriter& r, ValueId x, ValueId matrix) {
  const sym::Expr rows = r.b.sizes(x)[0], inner = r.b.sizes(x)[1], columns = r.b.sizes(matrix)[1];
  const Sizes products = {rows, columns, inner};
  const ValueId a = r.b.expand(r.b.unsqueeze(r.b.convert(x, DType::kF32), 1), products);
  const ValueId b = r.b.expand(r.b.unsqueeze(unpacked(r, matrix), 0), products);
  return r.b.sum(r.b.mul(a, b), {2});
}

bool mm_of_few_rows(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto& providers = *static_cast<const target::Providers*>(user);
  const ValueId x = ops::as_value(n.args[0]), matrix = ops::as_value(n.args[1]);
  if (!is_low_precision(r, x, matrix, providers)) return false;
  const ValueId sum = sums_of_few_rows(r, x, matrix);
  results = {r.b.convert(sum, r.b.dtype(n.outs[0]))};
  return true;
}

bool addmm_of_few_rows(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto& providers = *static_cast<const target::Providers*>(user);
  const ValueId bias = ops::as_value(n.args[0]), x = ops::as_value(n.args[1]), matrix = ops::as_value(n.args[2]);
  if (!ops::is_number(n.args[3], 1) || !ops::is_number(n.args[4], 1) || !adds_up_in_f32(r.b.dtype(bias)) ||
      !is_low_precision(r, x, matrix, providers))
    return false;
  const ValueId sum = sums_of_few_rows(r, x, matrix);
  const ValueId added = r.b.expand(r.b.convert(bias, DType::kF32), r.b.sizes(sum));
  results = {r.b.convert(r.b.add(sum, added), r.b.dtype(n.outs[0]))};
  return true;
}

constexpr RewriteRule kLowPrecisionRules[] = {
    {op::mm, "few rows @ unpack(matrix) -> sums that unpack", mm_of_few_rows},
    {op::addmm, "bias + few rows @ unpack(matrix) -> the same", addmm_of_few_rows},
};

}  // namespace

bool is_low_precision(Rewriter& r, ValueId x, ValueId matrix, const target::Providers& providers) {
  if (providers.eagers_bits || providers.batch_invariant) return false;
  const TensorType a = r.b.type(x), m = r.b.type(matrix);
  if (!adds_up_in_f32(a.dtype) || a.dtype != m.dtype || a.rank() != 2 || m.rank() != 2 || !all_const(a.sizes) ||
      !all_const(m.sizes) || a.sizes[0].value() > most_rows(r, a, matrix) || a.sizes[1].value() < kLeastInner ||
      m.sizes[0].value() * m.sizes[1].value() < kLeastElements || !m.strides[0].is_const(1))
    return false;
  return is_unpacked(definitions(r), matrix);
}

Graph low_precision(Graph g, const target::Providers& providers) {
  return rewrite(std::move(g), kLowPrecisionRules, &providers);
}

}  // namespace flashover::graph
