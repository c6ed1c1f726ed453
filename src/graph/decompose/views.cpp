// Views as index maps over values.
#include <algorithm>

#include "graph/decompose/rules.h"
#include "ops/aten/infer.h"
#include "ops/names.h"

namespace flashover::graph::rules {
namespace {

bool reshape(Builder& b, const Node& n, Outs& outs) {  // also squeeze and unsqueeze
  TensorType t = result(b, n);
  if (t.dtype != type(b, n, 0).dtype) return false;
  outs = {b.reshape(in(n, 0), t.sizes)};
  return true;
}
bool expand(Builder& b, const Node& n, Outs& outs) {
  outs = {b.expand(in(n, 0), result(b, n).sizes)};
  return true;
}
bool permute(Builder& b, const Node& n, Outs& outs) {
  auto order = integers(arg(n, 1));
  if (!order || order->size() != b.rank(in(n, 0))) return false;
  ValueId x = in(n, 0);
  for (int64_t& d : *order) d = b.wrap(x, d);
  outs = {b.permute(x, *order)};
  return true;
}
bool transpose(Builder& b, const Node& n, Outs& outs) {
  auto p = integer(arg(n, 1)), q = integer(arg(n, 2));
  if (!p || !q) return false;
  ValueId x = in(n, 0);
  outs = {b.rank(x) == 0 ? x : b.transpose(x, *p, *q)};
  return true;
}
bool transpose_2d(Builder& b, const Node& n, Outs& outs) {
  ValueId x = in(n, 0);
  outs = {b.rank(x) == 2 ? b.transpose(x, 0, 1) : x};
  return true;
}
bool select(Builder& b, const Node& n, Outs& outs) {
  auto dim = integer(arg(n, 1)), index = integer(arg(n, 2));
  ValueId x = in(n, 0);
  if (!dim || !index || b.rank(x) == 0) return false;
  outs = {b.select(x, *dim, *index < 0 ? b.size(x, *dim) + *index : sym::Expr(*index))};
  return true;
}
struct Range {
  int64_t dim;
  sym::Expr start, end;
  int64_t step;
};
// (x, dim, start, end, step) at argument `at`, clamped; nullopt when not constant.
std::optional<Range> range_of(Builder& b, const Node& n, size_t at, ValueId x) {
  auto dim = integer(arg(n, at)), step = integer(arg(n, at + 3));
  if (!dim || !step || *step < 1 || b.rank(x) == 0) return std::nullopt;
  auto size = b.size(x, *dim).as_const();
  auto start = is_none(arg(n, at + 1)) ? std::optional<int64_t>(0) : integer(arg(n, at + 1));
  if (!size || !start) return std::nullopt;
  auto end = is_none(arg(n, at + 2)) ? size : integer(arg(n, at + 2));
  if (!end) return std::nullopt;
  auto clamp = [&](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + *size : v, 0, *size); };
  int64_t from = clamp(*start), to = std::max(from, clamp(*end));
  return Range{b.wrap(x, *dim), from, to, *step};
}
bool slice(Builder& b, const Node& n, Outs& outs) {
  ValueId x = in(n, 0);
  auto r = range_of(b, n, 1, x);
  if (!r) return false;
  outs = {b.slice(x, r->dim, r->start, r->end, r->step)};
  return true;
}
// Two elements of the tensor may have one address. ATen's *_scatter keep that in their result, so a write shows in
// both; but not where a stride is 0: then the result is dense.
bool result_may_overlap(const TensorType& t) {
  return !ops::aten::has_zero_size(t) && !ops::aten::repeats(t) && ops::aten::overlaps_itself(t.sizes, t.strides);
}
bool slice_scatter(Builder& b, const Node& n, Outs& outs) {  // (self, src, dim, start, end, step)
  ValueId x = in(n, 0);
  auto r = range_of(b, n, 2, x);
  if (!r || result_may_overlap(b.type(x))) return false;
  Sizes part = b.sizes(x);
  part[static_cast<size_t>(r->dim)] = sym::ceildiv(r->end - r->start, r->step);
  if (!same_sizes(b.sizes(in(n, 1)), part)) return false;  // eager's error
  ValueId src = b.convert(in(n, 1), b.dtype(x));
  outs = {b.slice_scatter(x, src, r->dim, r->start, r->end, r->step)};
  return true;
}
bool select_scatter(Builder& b, const Node& n, Outs& outs) {  // (self, src, dim, index)
  ValueId x = in(n, 0);
  auto dim = integer(arg(n, 2)), index = integer(arg(n, 3));
  if (!dim || !index || b.rank(x) == 0 || result_may_overlap(b.type(x))) return false;
  sym::Expr i = *index < 0 ? b.size(x, *dim) + *index : sym::Expr(*index);
  if (!sym::known_le(0, i) || !sym::known_lt(i, b.size(x, *dim))) return false;
  Sizes part = b.sizes(x);
  part.erase(part.begin() + b.wrap(x, *dim));
  if (!same_sizes(b.sizes(in(n, 1)), part)) return false;  // eager's error
  ValueId src = b.unsqueeze(b.convert(in(n, 1), b.dtype(x)), b.wrap(x, *dim));
  outs = {b.slice_scatter(x, src, b.wrap(x, *dim), i, i + 1)};
  return true;
}
// Results in order along a dim, sizes from the results' own types. All must be alive, so that their offsets are known.
bool slices_along(Builder& b, const Node& n, int64_t dim, Outs& outs) {
  ValueId x = in(n, 0);
  for (ValueId v : n.outs)
    if (v == kNoValue) return false;
  sym::Expr at = 0;
  for (size_t i = 0; i < n.outs.size(); ++i) {
    sym::Expr size = result(b, n, i).sizes[b.wrap(x, dim)];
    outs.push_back(b.slice(x, dim, at, at + size));
    at += size;
  }
  return true;
}
bool split(Builder& b, const Node& n, Outs& outs) {  // (self, split_size or sizes, dim)
  auto dim = integer(arg(n, 2));
  return dim && slices_along(b, n, *dim, outs);
}
bool unbind(Builder& b, const Node& n, Outs& outs) {
  auto dim = integer(arg(n, 1));
  if (!dim) return false;
  for (size_t i = 0; i < n.outs.size(); ++i)
    outs.push_back(dead(n, i) ? kNoValue : b.select(in(n, 0), *dim, static_cast<int64_t>(i)));
  return true;
}
bool diagonal(Builder& b, const Node& n, Outs& outs) {
  auto offset = integer(arg(n, 1)), p = integer(arg(n, 2)), q = integer(arg(n, 3));
  ValueId x = in(n, 0);
  if (!offset || !p || !q || result(b, n).numel().is_const(0)) return false;
  outs = {b.diagonal(x, *offset, b.wrap(x, *p), b.wrap(x, *q))};
  return true;
}
bool as_strided(Builder& b, const Node& n, Outs& outs) {
  TensorType x = type(b, n, 0), t = result(b, n);
  // Strides speak of memory; they are those of the elements' order only over a contiguous tensor at offset 0.
  if (!is_contiguous(x) || !x.offset.is_const(0)) return false;
  sym::Expr offset = is_none(arg(n, 3)) ? sym::Expr(0) : std::get<sym::Expr>(arg(n, 3));
  outs = {b.emit(Prim::as_strided, {Ref{in(n, 0)}, t.sizes, arg(n, 2), offset})};
  return true;
}
bool unfold(Builder& b, const Node& n, Outs& outs) {  // (self, dim, size, step): windows, over the row-major elements
  auto dim = integer(arg(n, 1)), step = integer(arg(n, 3));
  ValueId x = in(n, 0);
  if (!dim || !step || b.rank(x) == 0) return false;
  TensorType t = result(b, n);
  Sizes strides = contiguous_strides(b.sizes(x));
  int64_t d = b.wrap(x, *dim);
  strides.push_back(strides[d]);
  strides[d] = strides[d] * *step;
  outs = {b.emit(Prim::as_strided, {Ref{x}, t.sizes, strides, sym::Expr(0)})};
  return true;
}

bool flip(Builder& b, const Node& n, Outs& outs) {
  auto dims = integers(arg(n, 1));
  ValueId x = in(n, 0);
  if (!dims) return false;
  if (dims->empty() || b.rank(x) == 0) {
    outs = {x};
    return true;
  }
  for (int64_t& d : *dims) d = b.wrap(x, d);
  std::sort(dims->begin(), dims->end());
  outs = {b.flip(x, *dims)};
  return true;
}
bool rot90(Builder& b, const Node& n, Outs& outs) {
  const auto k = integer(arg(n, 1));
  const auto dims = integers(arg(n, 2));
  ValueId x = in(n, 0);
  if (!k || !dims || dims->size() != 2) return false;
  const int64_t p = b.wrap(x, (*dims)[0]), q = b.wrap(x, (*dims)[1]), turns = (*k % 4 + 4) % 4;
  if (turns == 2) x = b.flip(x, {std::min(p, q), std::max(p, q)});
  if (turns % 2 == 1) x = b.transpose(b.flip(x, {turns == 1 ? q : p}), p, q);
  outs = {x};
  return true;
}
// shift mod size, without a division where the size is known to be larger than the shift.
sym::Expr within_size(sym::Expr shift, sym::Expr size) {
  if (sym::known_le(0, shift) && sym::known_lt(shift, size)) return shift;
  if (sym::known_lt(shift, 0) && sym::known_le(-shift, size)) return size + shift;
  return sym::mod(shift, size);
}
bool roll(Builder& b, const Node& n, Outs& outs) {
  const auto shifts = ops::aten::size_list(arg(n, 1));
  auto dims = integers(arg(n, 2));
  ValueId x = in(n, 0);
  if (!shifts || !dims || result(b, n).numel().is_const(0)) return false;
  Sizes sizes = b.sizes(x);
  bool flat = dims->empty();
  if (flat && shifts->size() != 1) return false;
  if (!flat && dims->size() != shifts->size()) return false;
  if (b.rank(x) == 0) {
    outs = {x};
    return true;
  }
  if (flat) {
    x = b.reshape(x, {sym::product(sizes)});
    dims = Ints{0};
  }
  for (size_t i = 0; i < dims->size(); ++i) {
    const sym::Expr size = b.size(x, (*dims)[i]), shift = within_size((*shifts)[i], size);
    if (shift.is_const(0)) continue;
    ValueId tail = b.slice(x, (*dims)[i], size - shift, size), head = b.slice(x, (*dims)[i], 0, size - shift);
    x = b.cat({tail, head}, (*dims)[i]);
  }
  outs = {flat ? b.reshape(x, sizes) : x};
  return true;
}
bool repeat(Builder& b, const Node& n, Outs& outs) {
  TensorType t = result(b, n);
  ValueId x = in(n, 0);
  Sizes sizes = b.sizes(x), spread;
  size_t shift = t.rank() - sizes.size();
  auto* repeats = std::get_if<Sizes>(&arg(n, 1));
  if (!repeats || repeats->size() != t.rank()) return false;
  Ints dims;
  for (size_t i = 0; i < t.rank(); ++i) {
    if (!(*repeats)[i].is_const(1)) spread.push_back((*repeats)[i]);
    if (i < shift) continue;
    dims.push_back(static_cast<int64_t>(spread.size()));
    spread.push_back(sizes[i - shift]);
  }
  outs = {b.reshape(b.broadcast(x, spread, dims), t.sizes)};
  return true;
}
template <bool up>
bool pixel_shuffle(Builder& b, const Node& n, Outs& outs) {
  auto r = integer(arg(n, 1));
  ValueId x = in(n, 0);
  Sizes s = b.sizes(x);
  size_t rank = s.size();
  if (!r || rank < 3) return false;
  sym::Expr c = s[rank - 3], h = s[rank - 2], w = s[rank - 1], k = *r;
  Sizes wide(s.begin(), s.end() - 3);
  Ints order;
  for (size_t i = 0; i < rank - 3; ++i) order.push_back(static_cast<int64_t>(i));
  auto p = static_cast<int64_t>(rank - 3);
  if (up) {
    for (sym::Expr e : {sym::floordiv(c, k * k), k, k, h, w}) wide.push_back(e);
    for (int64_t d : {0, 3, 1, 4, 2}) order.push_back(p + d);
  } else {
    for (sym::Expr e : {c, sym::floordiv(h, k), k, sym::floordiv(w, k), k}) wide.push_back(e);
    for (int64_t d : {0, 2, 4, 1, 3}) order.push_back(p + d);
  }
  outs = {b.reshape(b.permute(b.reshape(x, wide), order), result(b, n).sizes)};
  return true;
}
bool channel_shuffle(Builder& b, const Node& n, Outs& outs) {
  auto groups = integer(arg(n, 1));
  ValueId x = in(n, 0);
  Sizes s = b.sizes(x), wide = s;
  if (!groups || s.size() < 2 || *groups < 1) return false;
  if (s[1].is_const() && s[1].value() % *groups != 0) return false;  // eager's error
  wide[1] = *groups;
  wide.insert(wide.begin() + 2, sym::floordiv(s[1], *groups));
  outs = {b.reshape(b.transpose(b.reshape(x, wide), 1, 2), s)};
  return true;
}

}  // namespace

void add_views(DecompositionRows& r) {
  add<reshape>(r,
               {op::view, op::_unsafe_view, op::reshape, op::view_copy, op::squeeze, op::squeeze_dim, op::squeeze_dims,
                op::unsqueeze, op::squeeze_copy, op::squeeze_copy_dim, op::squeeze_copy_dims, op::unsqueeze_copy});
  add<expand>(r, {op::expand, op::expand_copy});
  add<permute>(r, {op::permute, op::permute_copy});
  add<transpose>(r, {op::transpose_int, op::transpose_copy_int});
  add<transpose_2d>(r, {op::t, op::t_copy});
  add<select>(r, {op::select_int, op::select_copy_int});
  add<slice>(r, {op::slice_Tensor, op::slice_copy_Tensor});
  add<slice_scatter>(r, {op::slice_scatter});
  add<select_scatter>(r, {op::select_scatter});
  add<split>(r, {op::split_Tensor, op::split_with_sizes, op::unsafe_split_Tensor, op::unsafe_split_with_sizes});
  add<unbind>(r, {op::unbind_int});
  add<diagonal>(r, {op::diagonal, op::diagonal_copy});
  add<as_strided>(r, {op::as_strided});
  add<unfold>(r, {op::unfold});
  add<flip>(r, {op::flip});
  add<rot90>(r, {op::rot90});
  add<roll>(r, {op::roll});
  add<repeat>(r, {op::repeat});
  add<pixel_shuffle<true>>(r, {op::pixel_shuffle});
  add<pixel_shuffle<false>>(r, {op::pixel_unshuffle});
  add<channel_shuffle>(r, {op::channel_shuffle, op::native_channel_shuffle});
}

}  // namespace flashover::graph::rules
