// Movement by index: cat, pad, gather, embedding, advanced indexing.
#include <algorithm>

#include "graph/decompose/rules.h"
#include "ops/aten/infer.h"
#include "ops/names.h"

namespace flashover::graph::rules {
namespace {

bool list_of(const Node& n, size_t i, std::vector<ValueId>& values) {
  auto* list = std::get_if<RefList>(&arg(n, i));
  if (!list || list->empty()) return false;
  for (Ref r : *list) {
    if (r.id == kNoValue) return false;
    values.push_back(r.id);
  }
  return true;
}
bool cat(Builder& b, const Node& n, Outs& outs) {
  std::vector<ValueId> list, parts;
  auto dim = integer(arg(n, 1));
  if (!dim || !list_of(n, 0, list)) return false;
  TensorType t = result(b, n);
  for (ValueId v : list)
    if (b.rank(v) == t.rank() && !(b.rank(v) == 1 && b.size(v, 0).is_const(0))) parts.push_back(v);
  if (parts.empty()) {
    outs = {b.full(t.sizes, *scalar_in(sym::Expr(0), t.dtype), t.dtype, t.device)};
    return true;
  }
  for (ValueId& v : parts) v = b.convert(v, t.dtype);
  outs = {parts.size() == 1 ? parts[0] : b.cat(parts, b.wrap(parts[0], *dim))};
  return true;
}
bool stack(Builder& b, const Node& n, Outs& outs) {
  std::vector<ValueId> list;
  auto dim = integer(arg(n, 1));
  if (!dim || !list_of(n, 0, list)) return false;
  TensorType t = result(b, n);
  auto rank = static_cast<int64_t>(t.rank());
  int64_t d = *dim < 0 ? *dim + rank : *dim;
  for (ValueId& v : list) v = b.unsqueeze(b.convert(v, t.dtype), d);
  outs = {list.size() == 1 ? list[0] : b.cat(list, d)};
  return true;
}
bool constant_pad(Builder& b, const Node& n, Outs& outs) {  // (self, pad, value)
  const auto* list = std::get_if<Sizes>(&arg(n, 1));
  const auto numbers = integers(arg(n, 1));
  if (!list && !numbers) return false;
  const Sizes pad = list ? *list : Sizes(numbers->begin(), numbers->end());
  ValueId x = in(n, 0);
  DType d = b.dtype(x);
  const bool late = has(n, 2);  // the number is known when the program runs
  auto value = scalar_in(late || is_none(arg(n, 2)) ? Arg(sym::Expr(0)) : arg(n, 2), d);
  if (!value || pad.size() % 2 || pad.size() / 2 > b.rank(x)) return false;
  size_t rank = b.rank(x);
  Sizes lo(rank, 0), hi(rank, 0), starts(rank, 0), ends = b.sizes(x);
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    size_t at = rank - 1 - i;
    const sym::Expr left = pad[2 * i], right = pad[2 * i + 1];
    const bool adds_left = sym::known_le(0, left), adds_right = sym::known_le(0, right);
    if ((!adds_left && !sym::known_le(left, 0)) || (!adds_right && !sym::known_le(right, 0))) return false;
    if (adds_left) lo[at] = left;
    if (adds_right) hi[at] = right;
    if (!adds_left) starts[at] = -left;
    if (!adds_right) ends[at] = ends[at] + right;
    if (!sym::known_le(starts[at], ends[at])) return false;
  }
  x = b.slice(x, starts, ends, Sizes(rank, 1));
  auto positive = [](sym::Expr e) { return !e.is_const(0); };
  if (std::any_of(lo.begin(), lo.end(), positive) || std::any_of(hi.begin(), hi.end(), positive)) {
    const ValueId inside =
        late ? b.pad(b.full(b.sizes(x), true, DType::kBool, b.type(x).device), lo, hi, false) : kNoValue;
    x = b.pad(x, lo, hi, *value);
    if (late) x = b.where(inside, x, b.convert(in(n, 2), d));
  }
  outs = {x};
  return true;
}

bool gather(Builder& b, const Node& n, Outs& outs) {
  auto dim = integer(arg(n, 1));
  ValueId x = in(n, 0), index = in(n, 2);
  if (!dim || b.rank(x) == 0 || b.rank(index) != b.rank(x) || b.type(x).numel().is_const(0)) return false;
  outs = {b.gather(x, b.wrap(x, *dim), b.convert(index, DType::kI64))};
  return true;
}
// Rows of x along dim by a 1-d index, as a gather whose index repeats over the other dims.
ValueId take_rows(Builder& b, ValueId x, int64_t dim, ValueId index) {
  Sizes sizes = b.sizes(x);
  sizes[dim] = b.size(index, 0);
  return b.gather(x, dim, b.broadcast(b.convert(index, DType::kI64), sizes, {dim}));
}
bool index_select(Builder& b, const Node& n, Outs& outs) {
  auto dim = integer(arg(n, 1));
  ValueId x = in(n, 0), index = in(n, 2);
  if (!dim || b.rank(x) == 0 || b.rank(index) > 1 || b.type(x).numel().is_const(0) ||
      !ops::aten::is_index(b.type(index)))
    return false;
  outs = {take_rows(b, x, b.wrap(x, *dim), b.rank(index) == 0 ? b.unsqueeze(index, 0) : index)};
  return true;
}
bool embedding(Builder& b, const Node& n, Outs& outs) {  // (weight, indices, ...)
  ValueId w = in(n, 0), index = in(n, 1);
  if (b.rank(w) != 2 || b.type(w).numel().is_const(0) || !ops::aten::is_index(b.type(index))) return false;
  ValueId flat = b.reshape(index, {b.type(index).numel()});
  outs = {b.reshape(take_rows(b, w, 0, flat), result(b, n).sizes)};
  return true;
}
// (grad, indices, num_weights, padding_idx, scale_grad_by_freq). GPU: atomic sums, where ATen sorts the indices first.
bool embedding_backward(Builder& b, const Node& n, Outs& outs) {
  auto rows = integer(arg(n, 2)), padding = integer(arg(n, 3));
  ValueId grad = in(n, 0), index = in(n, 1);
  const TensorType g = b.type(grad), out = result(b, n);
  if (g.device.type != DeviceType::kCUDA || g.dtype != DType::kF32 || !rows || !padding || flag(arg(n, 4)) ||
      *rows == 0 || b.rank(grad) != b.rank(index) + 1 || g.numel().is_const(0) || out.rank() != 2)
    return false;
  const sym::Expr count = b.type(index).numel(), width = g.sizes.back();
  ValueId at = b.convert(b.reshape(index, {count}), DType::kI64), values = b.reshape(grad, {count, width});
  if (*padding >= 0) {
    const ValueId skipped = b.eq(at, b.full({}, sym::Expr(*padding), DType::kI64, g.device));
    values = b.where(b.expand(b.unsqueeze(skipped, 1), b.sizes(values)), constant(b, values, 0), values);
  }
  outs = {b.index_put(b.full(out.sizes, Arg(0.0), DType::kF32, g.device), {Ref{at}}, values, true)};
  return true;
}
// Indices as 64-bit numbers; nothing where there are none, or where one is a mask.
std::optional<RefList> integer_indices(Builder& b, const RefList& list) {
  bool any = false;
  for (Ref r : list) {
    if (r.id == kNoValue) continue;
    any = true;
    if (b.dtype(r.id) != DType::kI64 && b.dtype(r.id) != DType::kI32) return std::nullopt;
  }
  if (!any) return std::nullopt;
  RefList indices;
  for (Ref r : list) indices.push_back(r.id == kNoValue ? r : Ref{b.convert(r.id, DType::kI64)});
  return indices;
}
// Integer indices only: a mask's result has a size that depends on data.
bool index(Builder& b, const Node& n, Outs& outs) {
  auto* list = std::get_if<RefList>(&arg(n, 1));
  ValueId x = in(n, 0);
  if (!list || b.type(x).numel().is_const(0)) return false;
  const auto indices = integer_indices(b, *list);
  if (!indices) return false;
  outs = {b.index(x, *indices)};
  return true;
}
// GPU: rows that are stored where an index says, into memory of the caller's where nothing else reads it (a cache that
// gets the keys of a token); kernels do so in a row with their neighbours.
bool stores_by_index(Builder& b, ValueId x, ValueId values) {
  return b.type(x).device.type == DeviceType::kCUDA && b.dtype(values) == b.dtype(x) && b.rank(x) > 0 &&
         !b.type(x).numel().is_const(0) && !b.type(values).numel().is_const(0);
}
bool index_copy(Builder& b, const Node& n, Outs& outs) {  // (self, dim, index, source)
  const auto given = integer(arg(n, 1));
  const ValueId x = in(n, 0), index = in(n, 2), rows = in(n, 3);
  if (!given || !stores_by_index(b, x, rows) || b.rank(index) > 1 || b.rank(rows) != b.rank(x)) return false;
  const int64_t dim = b.wrap(x, *given);
  const ValueId flat = b.reshape(b.convert(index, DType::kI64), {b.size(rows, dim)});
  outs = {b.scatter(x, dim, b.broadcast(flat, b.sizes(rows), {dim}), rows, "none")};
  return true;
}
// x[i, :, j] = values, by integers.
bool put_by_integers(Builder& b, const Node& n, const RefList& list, Outs& outs) {
  const ValueId x = in(n, 0), values = in(n, 2);
  if (!stores_by_index(b, x, values)) return false;
  for (Ref r : list)
    if (r.id != kNoValue && b.type(r.id).numel().is_const(0)) return false;
  const auto indices = integer_indices(b, list);
  if (!indices) return false;
  outs = {b.index_put(x, *indices, values, false)};
  return true;
}
// x[mask] = one value is a selection.
bool index_put(Builder& b, const Node& n, Outs& outs) {  // (self, indices, values, accumulate)
  auto* list = std::get_if<RefList>(&arg(n, 1));
  ValueId x = in(n, 0), values = in(n, 2);
  if (!list || flag(arg(n, 3))) return false;
  if (put_by_integers(b, n, *list, outs)) return true;
  if (list->size() != 1 || (*list)[0].id == kNoValue) return false;
  ValueId mask = (*list)[0].id;
  if (b.dtype(mask) != DType::kBool || !b.type(values).numel().is_const(1) || b.dtype(values) != b.dtype(x))
    return false;
  if (b.rank(mask) > b.rank(x)) return false;
  Sizes wide = b.sizes(mask);
  for (size_t i = 0; i < wide.size(); ++i)
    if (!sym::known_eq(wide[i], b.size(x, static_cast<int64_t>(i)))) return false;
  wide.resize(b.rank(x), 1);
  outs = {b.where(b.reshape(mask, wide), b.reshape(values, {}), x)};
  return true;
}

}  // namespace

void add_indexing(DecompositionRows& r) {
  add<cat>(r, {op::cat});
  add<stack>(r, {op::stack});
  add<constant_pad>(r, {op::constant_pad_nd});
  add<gather>(r, {op::gather});
  add<index_select>(r, {op::index_select});
  add<embedding>(r, {op::embedding});
  add<embedding_backward>(r, {op::embedding_dense_backward});
  add<index>(r, {op::index_Tensor, op::_unsafe_index_Tensor});
  add<index_put>(r, {op::index_put, op::_unsafe_index_put});
  add<index_copy>(r, {op::index_copy});
}

}  // namespace flashover::graph::rules
