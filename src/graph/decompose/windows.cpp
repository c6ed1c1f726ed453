// Pooling and resampling.
#include "ops/windows.h"
#include "graph/decompose/rules.h"
#include "ops/names.h"

namespace flashover::graph::rules {
namespace {

bool window(const Node& n, size_t rank, Ints& kernel, Ints& stride, Ints& padding) {
  auto k = spread(arg(n, 1), rank), p = spread(arg(n, 3), rank);
  auto s = integers(arg(n, 2));
  if (!k || !p || !s) return false;
  if (s->empty()) s = k;
  if (s->size() == 1) s->assign(rank, (*s)[0]);
  kernel = *k;
  stride = *s;
  padding = *p;
  return s->size() == rank;
}

// In ceil mode the prim has to know of each dimension whether its last window begins in the padding.
bool knows_last_window(Builder& b, ValueId x, const Ints& kernel, const Ints& stride, const Ints& padding,
                       const Ints& dilation) {
  const Sizes sizes = b.sizes(x);
  for (size_t i = 0; i < kernel.size(); ++i) {
    const sym::Expr size = sizes[sizes.size() - kernel.size() + i], limit = size + padding[i];
    const sym::Expr last =
        sym::ceildiv(size + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1, stride[i]) * stride[i];
    if (!sym::known_lt(last, limit) && !sym::known_le(limit, last)) return false;
  }
  return true;
}

// A long window that is no tile of its own is unrolled, dimension by dimension: from here on that costs the compiler
// seconds, and the operator's own kernel serves.
bool too_long(const Ints& kernel, const Ints& stride, const Ints& padding, const Ints& dilation) {
  constexpr int64_t kLongest = 32;
  return !ops::windows_tile(kernel, stride, padding, dilation) &&
         std::ranges::any_of(kernel, [](int64_t k) { return k > kLongest; });
}

// Values only; with indices the node stays extern.
template <size_t rank>
bool max_pool(Builder& b, const Node& n, Outs& outs) {  // (self, kernel, stride, padding, dilation, ceil_mode)
  Ints kernel, stride, padding;
  auto dilation = spread(arg(n, 4), rank);
  ValueId x = in(n, 0);
  if (!dead(n, 1) || !dilation || !window(n, rank, kernel, stride, padding) || b.dtype(x) == DType::kBool) return false;
  if (too_long(kernel, stride, padding, *dilation)) return false;
  if (flag(arg(n, 5)) && !knows_last_window(b, x, kernel, stride, padding, *dilation)) return false;
  DType d = b.dtype(x);
  ValueId y = b.max_pool(b.convert(x, math(d)), kernel, stride, padding, *dilation, flag(arg(n, 5)));
  outs = {b.convert(y, d), kNoValue};
  return true;
}
template <size_t rank>
bool avg_pool(Builder& b, const Node& n,
              Outs& outs) {  // (self, kernel, stride, padding, ceil, count_include_pad, divisor)
  Ints kernel, stride, padding;
  ValueId x = in(n, 0);
  DType d = b.dtype(x);
  if (!is_floating(d) || !window(n, rank, kernel, stride, padding)) return false;
  if (!is_none(arg(n, 6)) && !integer(arg(n, 6))) return false;
  if (too_long(kernel, stride, padding, Ints(rank, 1))) return false;
  // Where windows reach into the padding they are not taken apart by dimensions.
  constexpr int64_t kMostPlaces = 200;
  const bool inside =
      !flag(arg(n, 4)) && is_none(arg(n, 6)) && std::ranges::all_of(padding, [](int64_t p) { return p == 0; });
  int64_t places = 1;
  for (int64_t k : kernel) places *= k;
  if (!inside && places > kMostPlaces) return false;
  if (flag(arg(n, 4)) && !knows_last_window(b, x, kernel, stride, padding, Ints(rank, 1))) return false;
  ValueId y = b.avg_pool(b.convert(x, math(d)), kernel, stride, padding, flag(arg(n, 4)), flag(arg(n, 5)), arg(n, 6));
  return done(b, y, d, outs);
}
// When every window has the same size, it is a mean over split dims.
template <size_t rank>
bool adaptive_avg_pool(Builder& b, const Node& n, Outs& outs) {
  ValueId x = in(n, 0);
  DType d = b.dtype(x);
  Sizes sizes = b.sizes(x), wide(sizes.begin(), sizes.end() - rank), target = result(b, n).sizes;
  if (!is_floating(d) || b.type(x).numel().is_const(0)) return false;
  Ints over;
  sym::Expr count = 1;
  for (size_t i = sizes.size() - rank; i < sizes.size(); ++i) {
    const sym::Expr from = sizes[i], to = target[i];
    if (!sym::known_le(1, to)) return false;
    const bool same = sym::known_eq(from, to);
    if (!same && !(to.is_const() && sym::known_divisible(from, to.value()))) return false;
    const sym::Expr window = same ? sym::Expr(1) : sym::floordiv(from, to);
    wide.push_back(to);
    over.push_back(static_cast<int64_t>(wide.size()));
    wide.push_back(window);
    count *= window;
  }
  ValueId total = b.sum(b.reshape(b.convert(x, math(d)), wide), over);
  return done(b, b.div(total, number_of(b, total, count)), d, outs);
}

// How often each element of a dimension is repeated; `given` is a factor that decides, or 0.
std::optional<int64_t> whole_factor(sym::Expr from, sym::Expr to, double given) {
  constexpr double kMost = 1 << 20;
  if (!(given >= 0 && given <= kMost)) return std::nullopt;
  if (given > 0) {
    const auto factor = static_cast<int64_t>(given);
    return sym::known_eq(from * factor, to) ? std::optional(factor) : std::nullopt;
  }
  if (from.is_const() && to.is_const())
    return from.value() >= 1 && to.value() % from.value() == 0 ? std::optional(to.value() / from.value())
                                                               : std::nullopt;
  constexpr int64_t kTried = 8;
  for (int64_t factor = 1; factor <= kTried; ++factor)
    if (sym::known_eq(from * factor, to)) return factor;
  return std::nullopt;
}

// Nearest by whole factors repeats; the general case stays extern.
template <size_t rank>
bool upsample_nearest(Builder& b, const Node& n, Outs& outs) {
  ValueId x = in(n, 0);
  Sizes sizes = b.sizes(x), target = result(b, n).sizes, wide{sizes[0], sizes[1]};
  Ints dims{0, 1};
  // A given scale may differ from the ratio of the sizes, and then decides.
  for (size_t i = 2; i < n.args.size(); ++i)
    if (!is_none(n.args[i]))
      if (auto* s = std::get_if<double>(&n.args[i]); !s || *s != static_cast<double>(static_cast<int64_t>(*s)))
        return false;
  for (size_t i = 2; i < sizes.size(); ++i) {
    const bool given = n.args.size() > i && !is_none(n.args[i]);
    const auto factor = whole_factor(sizes[i], target[i], given ? std::get<double>(n.args[i]) : 0);
    if (!factor) return false;
    dims.push_back(static_cast<int64_t>(wide.size()));
    wide.push_back(sizes[i]);
    wide.push_back(*factor);
  }
  outs = {b.reshape(b.broadcast(x, wide, dims), target)};
  return true;
}

}  // namespace

void add_windows(DecompositionRows& r) {
  add<max_pool<2>>(r, {op::max_pool2d_with_indices});
  add<max_pool<3>>(r, {op::max_pool3d_with_indices});
  add<avg_pool<2>>(r, {op::avg_pool2d});
  add<avg_pool<3>>(r, {op::avg_pool3d});
  add<adaptive_avg_pool<2>>(r, {op::_adaptive_avg_pool2d});
  add<adaptive_avg_pool<3>>(r, {op::_adaptive_avg_pool3d});
  add<upsample_nearest<1>>(r, {op::upsample_nearest1d, op::_upsample_nearest_exact1d});
  add<upsample_nearest<2>>(r, {op::upsample_nearest2d, op::_upsample_nearest_exact2d});
  add<upsample_nearest<3>>(r, {op::upsample_nearest3d, op::_upsample_nearest_exact3d});
}

}  // namespace flashover::graph::rules
