// Appends prim nodes to a graph, inferring types; what decompositions and rewrites are written with.
//
//   Builder b(graph, location);
//   ValueId y = b.mul(x, b.sigmoid(x));                         // silu
//   ValueId m = b.div(b.sum(x, {1}, true), b.full_like(...));   // shapes broadcast from the right in every binary
//   method
//
// Binary methods broadcast sizes but never convert dtypes: operands must agree, as prims demand. Nothing-to-do forms
// (convert to the same dtype, broadcast to the same sizes, identity permute ...) return the operand itself.
// Dims of the methods may be negative.
#pragma once
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "ops/names.h"

namespace flashover::graph {

class Builder {
 public:
  explicit Builder(Graph& graph, int32_t location = -1) : graph_(graph), location_(location) {}
  void set_location(int32_t location) { location_ = location; }
  int32_t location() const { return location_; }

  Graph& graph() { return graph_; }
  const TensorType& type(ValueId v) const { return graph_.values[v].type; }  // invalidated by the next append: copy
  DType dtype(ValueId v) const { return type(v).dtype; }
  size_t rank(ValueId v) const { return type(v).rank(); }
  Sizes sizes(ValueId v) const { return type(v).sizes; }
  sym::Expr size(ValueId v, int64_t dim) const;
  int64_t wrap(ValueId v, int64_t dim) const;  // negative dims

  // Any operator. With a type rule (prims, known aten ops): types inferred. Otherwise the caller says them.
  ValueId emit(OpName op, std::vector<Arg> args);
  std::vector<ValueId> emit_all(OpName op, std::vector<Arg> args);
  ValueId emit(OpName op, std::vector<Arg> args, TensorType type);
  std::vector<ValueId> emit_all(OpName op, std::vector<Arg> args, std::vector<TensorType> types);

  // A method for each pointwise prim of one or two operands: b.exp(x), b.add(x, y).
#define FLASHOVER_BUILD_1(name) \
  ValueId name(ValueId x) { return emit(Prim::name, {Ref{x}}); }
#define FLASHOVER_BUILD_2(name) \
  ValueId name(ValueId a, ValueId b) { return append_binary(Prim::name, a, b); }
#define FLASHOVER_BUILD_3(name)
#define POINTWISE(name, arity, types, cost, traits, meaning) FLASHOVER_BUILD_##arity(name)
#include "ops/prims.def"
#undef FLASHOVER_BUILD_1
#undef FLASHOVER_BUILD_2
#undef FLASHOVER_BUILD_3

  ValueId convert(ValueId x, DType dtype);
  ValueId where(ValueId cond, ValueId a, ValueId b);  // all three broadcast
  ValueId fma(ValueId a, ValueId b, ValueId c);

  // The scalar is an Expr, double, bool or complex, and must mean the same after conversion to dtype as in the program.
  ValueId full(Sizes sizes, Arg scalar, DType dtype, Device device);
  ValueId full_like(ValueId x, Arg scalar) { return full(sizes(x), std::move(scalar), dtype(x), type(x).device); }
  ValueId scalar_like(ValueId x, Arg scalar) { return full({}, std::move(scalar), dtype(x), type(x).device); }  // 0-d
  ValueId iota(sym::Expr n, Arg start, Arg step, DType dtype, Device device);

  ValueId broadcast(ValueId x, Sizes sizes, const std::vector<int64_t>& dims);
  ValueId expand(ValueId x, const Sizes& sizes);  // from the right
  ValueId permute(ValueId x, std::vector<int64_t> dims);
  ValueId transpose(ValueId x, int64_t a, int64_t b);
  ValueId reshape(ValueId x, Sizes sizes);
  ValueId unsqueeze(ValueId x, int64_t dim);
  ValueId squeeze(ValueId x, int64_t dim);  // the dim must be 1
  ValueId slice(ValueId x, Sizes starts, Sizes ends, Sizes steps);
  ValueId slice(ValueId x, int64_t dim, sym::Expr start, sym::Expr end, sym::Expr step = 1);
  ValueId select(ValueId x, int64_t dim, sym::Expr index);  // 0 <= index < size
  ValueId flip(ValueId x, std::vector<int64_t> dims);
  ValueId diagonal(ValueId x, int64_t offset, int64_t dim1, int64_t dim2);

  ValueId pad(ValueId x, Sizes lo, Sizes hi, Arg scalar);
  ValueId cat(const std::vector<ValueId>& list, int64_t dim);
  ValueId gather(ValueId x, int64_t dim, ValueId index);
  ValueId index(ValueId x, RefList list);
  ValueId index_put(ValueId x, RefList list, ValueId values, bool accumulate);
  ValueId scatter(ValueId x, int64_t dim, ValueId index, ValueId src, std::string reduce);
  ValueId slice_scatter(ValueId x, ValueId src, Sizes starts, Sizes ends, Sizes steps);
  ValueId slice_scatter(ValueId x, ValueId src, int64_t dim, sym::Expr start, sym::Expr end, sym::Expr step = 1);

  // Dims in any order, negative allowed; empty dims reduce nothing (all_dims(x) reduces everything).
  ValueId sum(ValueId x, std::vector<int64_t> dims, bool keepdim = false);
  ValueId prod(ValueId x, std::vector<int64_t> dims, bool keepdim = false);
  ValueId amax(ValueId x, std::vector<int64_t> dims, bool keepdim = false);
  ValueId amin(ValueId x, std::vector<int64_t> dims, bool keepdim = false);
  ValueId any(ValueId x, std::vector<int64_t> dims, bool keepdim = false);
  ValueId all(ValueId x, std::vector<int64_t> dims, bool keepdim = false);
  ValueId argmax(ValueId x, std::vector<int64_t> dims, bool keepdim = false);
  ValueId argmin(ValueId x, std::vector<int64_t> dims, bool keepdim = false);
  std::pair<ValueId, ValueId> var(ValueId x, std::vector<int64_t> dims, double correction,
                                  bool keepdim = false);  // var, mean
  std::vector<int64_t> all_dims(ValueId x) const;
  sym::Expr count(ValueId x, const std::vector<int64_t>& dims) const;  // elements reduced over

  ValueId cumsum(ValueId x, int64_t dim);
  ValueId cumprod(ValueId x, int64_t dim);
  ValueId cummax(ValueId x, int64_t dim);
  ValueId cummin(ValueId x, int64_t dim);
  ValueId max_pool(ValueId x, const std::vector<int64_t>& kernel, const std::vector<int64_t>& stride,
                   const std::vector<int64_t>& padding, const std::vector<int64_t>& dilation, bool ceil_mode);
  ValueId avg_pool(ValueId x, const std::vector<int64_t>& kernel, const std::vector<int64_t>& stride,
                   const std::vector<int64_t>& padding, bool ceil_mode, bool count_include_pad, Arg divisor = {});

 private:
  ValueId append_binary(Prim prim, ValueId a, ValueId b);
  ValueId reduce(Prim prim, ValueId x, std::vector<int64_t> dims, bool keepdim);
  ValueId restore_dims(ValueId reduced, ValueId x, const std::vector<int64_t>& dims);
  std::vector<int64_t> sorted_dims(ValueId x, std::vector<int64_t> dims) const;

  Graph& graph_;
  int32_t location_;
};

Arg int_list(const std::vector<int64_t>& list);

// How a decomposition is written: the node's arguments are values of b's graph already; append nodes with b and put one
// value per result of the node into `outs` (kNoValue for a result that nothing reads). Return false, having appended
// nothing, for a case that stays extern. The driver gives the results the node's own types (eager's strides); sizes and
// dtype must already agree.
using Decomposition = bool (*)(Builder& b, const Node& node, std::vector<ValueId>& outs);

// The infer context over a graph's values, for calling ops::OpRow::infer.
ops::InferContext infer_context(const Graph& g, std::span<const Arg> args);

}  // namespace flashover::graph
