// Appends nodes with inferred types; broadcasts and conversions that do nothing are left out.
#include "graph/builder.h"

#include <algorithm>

#include "base/check.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {

ops::InferContext infer_context(const Graph& g, std::span<const Arg> args) {
  auto type_of = [](const void* graph, ValueId id) -> const TensorType& {
    return static_cast<const Graph*>(graph)->values[id].type;
  };
  return {.args = args, .type_of = type_of, .user = &g};
}

Arg int_list(const std::vector<int64_t>& list) { return Sizes(list.begin(), list.end()); }

ValueId Builder::emit(OpName op, std::vector<Arg> args) { return emit_all(op, std::move(args))[0]; }
std::vector<ValueId> Builder::emit_all(OpName name, std::vector<Arg> args) {
  const ops::OpRow* const op = ops::find(name);
  std::vector<TensorType> types;
  FLASHOVER_CHECK(op->infer && ops::infer(op->infer, infer_context(graph_, args), types))
      << op->name << ": no type rule for this case; say the types";
  return graph_.add_node(op, std::move(args), std::move(types), location_).outs;
}
ValueId Builder::emit(OpName op, std::vector<Arg> args, TensorType type) {
  return emit_all(op, std::move(args), {std::move(type)})[0];
}
std::vector<ValueId> Builder::emit_all(OpName op, std::vector<Arg> args, std::vector<TensorType> types) {
  return graph_.add_node(ops::find(op), std::move(args), std::move(types), location_).outs;
}

int64_t Builder::wrap(ValueId v, int64_t dim) const { return ops::wrap_dim(dim, rank(v)); }
sym::Expr Builder::size(ValueId v, int64_t dim) const { return type(v).sizes[wrap(v, dim)]; }

ValueId Builder::append_binary(Prim prim, ValueId a, ValueId b) {
  const Sizes common = ops::broadcast_sizes(type(a).sizes, type(b).sizes);
  a = expand(a, common);
  b = expand(b, common);
  return emit(prim, {Ref{a}, Ref{b}});
}

ValueId Builder::convert(ValueId x, DType to) { return dtype(x) == to ? x : emit(Prim::convert, {Ref{x}, to}); }

ValueId Builder::where(ValueId cond, ValueId a, ValueId b) {
  const Sizes common = ops::broadcast_sizes(ops::broadcast_sizes(type(a).sizes, type(b).sizes), type(cond).sizes);
  cond = expand(cond, common);
  a = expand(a, common);
  b = expand(b, common);
  return emit(Prim::where, {Ref{cond}, Ref{a}, Ref{b}});
}
ValueId Builder::fma(ValueId a, ValueId b, ValueId c) {
  const Sizes common = ops::broadcast_sizes(ops::broadcast_sizes(type(a).sizes, type(b).sizes), type(c).sizes);
  a = expand(a, common);
  b = expand(b, common);
  c = expand(c, common);
  return emit(Prim::fma, {Ref{a}, Ref{b}, Ref{c}});
}

ValueId Builder::full(Sizes sizes, Arg scalar, DType dtype, Device device) {
  return emit(Prim::full, {std::move(sizes), std::move(scalar), dtype, device});
}
ValueId Builder::iota(sym::Expr n, Arg start, Arg step, DType dtype, Device device) {
  return emit(Prim::iota, {n, std::move(start), std::move(step), dtype, device});
}

ValueId Builder::broadcast(ValueId x, Sizes sizes, const std::vector<int64_t>& dims) {
  if (same_sizes(type(x).sizes, sizes)) return x;
  return emit(Prim::broadcast, {Ref{x}, std::move(sizes), int_list(dims)});
}
ValueId Builder::expand(ValueId x, const Sizes& sizes) {
  const size_t n = rank(x);
  FLASHOVER_CHECK(sizes.size() >= n) << "expand to fewer dims";
  std::vector<int64_t> dims(n);
  for (size_t i = 0; i < n; ++i) dims[i] = static_cast<int64_t>(sizes.size() - n + i);
  return broadcast(x, sizes, dims);
}
ValueId Builder::permute(ValueId x, std::vector<int64_t> dims) {
  for (int64_t& d : dims) d = wrap(x, d);
  if (std::is_sorted(dims.begin(), dims.end())) return x;
  return emit(Prim::permute, {Ref{x}, int_list(dims)});
}
ValueId Builder::transpose(ValueId x, int64_t a, int64_t b) {
  if (rank(x) == 0) return x;
  std::vector<int64_t> dims = all_dims(x);
  std::swap(dims[wrap(x, a)], dims[wrap(x, b)]);
  return permute(x, std::move(dims));
}
ValueId Builder::reshape(ValueId x, Sizes sizes) {
  if (same_sizes(type(x).sizes, sizes)) return x;
  return emit(Prim::reshape, {Ref{x}, std::move(sizes)});
}
ValueId Builder::unsqueeze(ValueId x, int64_t dim) {
  Sizes s = sizes(x);
  dim = ops::wrap_dim(dim, s.size() + 1);
  s.insert(s.begin() + dim, 1);
  return reshape(x, std::move(s));
}
ValueId Builder::squeeze(ValueId x, int64_t dim) {
  Sizes s = sizes(x);
  dim = wrap(x, dim);
  FLASHOVER_CHECK(s[dim].is_const(1)) << "squeeze of a dim that is not 1";
  s.erase(s.begin() + dim);
  return reshape(x, std::move(s));
}
ValueId Builder::slice(ValueId x, Sizes starts, Sizes ends, Sizes steps) {
  bool whole = true;
  for (size_t i = 0; i < starts.size(); ++i)
    whole &= starts[i].is_const(0) && steps[i].is_const(1) && sym::known_eq(ends[i], type(x).sizes[i]);
  if (whole) return x;
  return emit(Prim::slice, {Ref{x}, std::move(starts), std::move(ends), std::move(steps)});
}
ValueId Builder::slice(ValueId x, int64_t dim, sym::Expr start, sym::Expr end, sym::Expr step) {
  Sizes starts(rank(x), 0), ends = sizes(x), steps(rank(x), 1);
  dim = wrap(x, dim);
  starts[dim] = start;
  ends[dim] = end;
  steps[dim] = step;
  return slice(x, std::move(starts), std::move(ends), std::move(steps));
}
ValueId Builder::select(ValueId x, int64_t dim, sym::Expr index) {
  dim = wrap(x, dim);
  return squeeze(slice(x, dim, index, index + 1), dim);
}
ValueId Builder::flip(ValueId x, std::vector<int64_t> dims) {
  dims = sorted_dims(x, std::move(dims));
  if (dims.empty() || rank(x) == 0) return x;
  return emit(Prim::flip, {Ref{x}, int_list(dims)});
}
ValueId Builder::diagonal(ValueId x, int64_t offset, int64_t dim1, int64_t dim2) {
  return emit(Prim::diagonal, {Ref{x}, sym::Expr(offset), sym::Expr(wrap(x, dim1)), sym::Expr(wrap(x, dim2))});
}

ValueId Builder::pad(ValueId x, Sizes lo, Sizes hi, Arg scalar) {
  auto zero = [](sym::Expr e) { return e.is_const(0); };
  if (std::all_of(lo.begin(), lo.end(), zero) && std::all_of(hi.begin(), hi.end(), zero)) return x;
  return emit(Prim::pad, {Ref{x}, std::move(lo), std::move(hi), std::move(scalar)});
}
ValueId Builder::cat(const std::vector<ValueId>& list, int64_t dim) {
  FLASHOVER_CHECK(!list.empty()) << "cat of nothing";
  if (list.size() == 1) return list[0];
  RefList refs;
  for (ValueId v : list) refs.push_back(Ref{v});
  return emit(Prim::cat, {std::move(refs), sym::Expr(wrap(list[0], dim))});
}
ValueId Builder::gather(ValueId x, int64_t dim, ValueId index) {
  return emit(Prim::gather, {Ref{x}, sym::Expr(wrap(x, dim)), Ref{index}});
}
ValueId Builder::index(ValueId x, RefList list) { return emit(Prim::index, {Ref{x}, std::move(list)}); }
ValueId Builder::index_put(ValueId x, RefList list, ValueId values, bool accumulate) {
  return emit(Prim::index_put, {Ref{x}, std::move(list), Ref{values}, accumulate});
}
ValueId Builder::scatter(ValueId x, int64_t dim, ValueId index, ValueId src, std::string reduce) {
  return emit(Prim::scatter, {Ref{x}, sym::Expr(wrap(x, dim)), Ref{index}, Ref{src}, std::move(reduce)});
}
ValueId Builder::slice_scatter(ValueId x, ValueId src, Sizes starts, Sizes ends, Sizes steps) {
  return emit(Prim::slice_scatter, {Ref{x}, Ref{src}, std::move(starts), std::move(ends), std::move(steps)});
}
ValueId Builder::slice_scatter(ValueId x, ValueId src, int64_t dim, sym::Expr start, sym::Expr end, sym::Expr step) {
  Sizes starts(rank(x), 0), ends = sizes(x), steps(rank(x), 1);
  dim = wrap(x, dim);
  starts[dim] = start;
  ends[dim] = end;
  steps[dim] = step;
  return slice_scatter(x, src, std::move(starts), std::move(ends), std::move(steps));
}

std::vector<int64_t> Builder::sorted_dims(ValueId x, std::vector<int64_t> dims) const {
  for (int64_t& d : dims) d = wrap(x, d);
  std::sort(dims.begin(), dims.end());
  FLASHOVER_CHECK(std::adjacent_find(dims.begin(), dims.end()) == dims.end()) << "a dim appears twice";
  return dims;
}
ValueId Builder::restore_dims(ValueId reduced, ValueId x, const std::vector<int64_t>& dims) {
  Sizes s = sizes(x);
  for (int64_t d : dims) s[d] = 1;
  return reshape(reduced, std::move(s));
}
ValueId Builder::reduce(Prim prim, ValueId x, std::vector<int64_t> dims, bool keepdim) {
  dims = sorted_dims(x, rank(x) == 0 ? std::vector<int64_t>{} : std::move(dims));
  const ValueId r = emit(prim, {Ref{x}, int_list(dims)});
  return keepdim ? restore_dims(r, x, dims) : r;
}
ValueId Builder::sum(ValueId x, std::vector<int64_t> dims, bool keepdim) {
  return reduce(Prim::sum, x, std::move(dims), keepdim);
}
ValueId Builder::prod(ValueId x, std::vector<int64_t> dims, bool keepdim) {
  return reduce(Prim::prod, x, std::move(dims), keepdim);
}
ValueId Builder::amax(ValueId x, std::vector<int64_t> dims, bool keepdim) {
  return reduce(Prim::amax, x, std::move(dims), keepdim);
}
ValueId Builder::amin(ValueId x, std::vector<int64_t> dims, bool keepdim) {
  return reduce(Prim::amin, x, std::move(dims), keepdim);
}
ValueId Builder::any(ValueId x, std::vector<int64_t> dims, bool keepdim) {
  return reduce(Prim::any, x, std::move(dims), keepdim);
}
ValueId Builder::all(ValueId x, std::vector<int64_t> dims, bool keepdim) {
  return reduce(Prim::all, x, std::move(dims), keepdim);
}
ValueId Builder::argmax(ValueId x, std::vector<int64_t> dims, bool keepdim) {
  return reduce(Prim::argmax, x, std::move(dims), keepdim);
}
ValueId Builder::argmin(ValueId x, std::vector<int64_t> dims, bool keepdim) {
  return reduce(Prim::argmin, x, std::move(dims), keepdim);
}
std::pair<ValueId, ValueId> Builder::var(ValueId x, std::vector<int64_t> dims, double correction, bool keepdim) {
  dims = sorted_dims(x, rank(x) == 0 ? std::vector<int64_t>{} : std::move(dims));
  std::vector<ValueId> r = emit_all(Prim::var, {Ref{x}, int_list(dims), correction});
  if (keepdim)
    for (ValueId& v : r) v = restore_dims(v, x, dims);
  return {r[0], r[1]};
}
std::vector<int64_t> Builder::all_dims(ValueId x) const {
  std::vector<int64_t> dims(rank(x));
  for (size_t i = 0; i < dims.size(); ++i) dims[i] = static_cast<int64_t>(i);
  return dims;
}
sym::Expr Builder::count(ValueId x, const std::vector<int64_t>& dims) const {
  sym::Expr n = 1;
  if (rank(x) == 0) return n;
  for (int64_t d : dims) n = n * size(x, d);
  return n;
}

ValueId Builder::cumsum(ValueId x, int64_t dim) { return emit(Prim::cumsum, {Ref{x}, sym::Expr(wrap(x, dim))}); }
ValueId Builder::cumprod(ValueId x, int64_t dim) { return emit(Prim::cumprod, {Ref{x}, sym::Expr(wrap(x, dim))}); }
ValueId Builder::cummax(ValueId x, int64_t dim) { return emit(Prim::cummax, {Ref{x}, sym::Expr(wrap(x, dim))}); }
ValueId Builder::cummin(ValueId x, int64_t dim) { return emit(Prim::cummin, {Ref{x}, sym::Expr(wrap(x, dim))}); }

ValueId Builder::max_pool(ValueId x, const std::vector<int64_t>& kernel, const std::vector<int64_t>& stride,
                          const std::vector<int64_t>& padding, const std::vector<int64_t>& dilation, bool ceil_mode) {
  return emit(Prim::max_pool,
              {Ref{x}, int_list(kernel), int_list(stride), int_list(padding), int_list(dilation), ceil_mode});
}
ValueId Builder::avg_pool(ValueId x, const std::vector<int64_t>& kernel, const std::vector<int64_t>& stride,
                          const std::vector<int64_t>& padding, bool ceil_mode, bool count_include_pad, Arg divisor) {
  return emit(Prim::avg_pool, {Ref{x}, int_list(kernel), int_list(stride), int_list(padding), ceil_mode,
                               count_include_pad, std::move(divisor)});
}

}  // namespace flashover::graph
