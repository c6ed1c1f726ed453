// Writes prims that are several loops (variances, pooling, long reductions, empty ones) as simpler prims.
#include "loops/schedule/expand.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "graph/builder.h"
#include "loops/lower/lower.h"
#include "ops/args.h"
#include "ops/names.h"
#include "ops/windows.h"

namespace flashover::loops {
namespace {

using graph::Builder;
using graph::Node;

constexpr int64_t kLongestWindow = 36;  // positions unrolled into one body

// Centred squares in a second pass: exact where sum(x^2) - mean^2 cancels, and the row is in cache. correct: the mean's
// own rounding is taken out.
void expand_var(Builder& b, const Node& node, bool correct, std::vector<ValueId>& outs) {
  const ValueId x = ops::as_value(node.args[0]);
  const std::vector<int64_t> dims = ops::as_ints(node.args[1]);
  const double correction = ops::as_double(node.args[2]);
  const DType dtype = b.dtype(x);
  const ValueId wide = is_reduced(dtype) ? b.convert(x, DType::kF32) : x;
  const sym::Expr n = b.count(x, dims);
  const ValueId sum = b.sum(wide, dims, true);
  ValueId mean = b.div(sum, b.full_like(sum, n));
  const ValueId centred = b.sub(wide, mean);
  ValueId squares = b.sum(b.mul(centred, centred), dims, false);
  if (correct) {
    const ValueId rest = b.sum(centred, dims, true), shift = b.div(rest, b.full_like(rest, n));
    const ValueId more = b.reshape(b.mul(rest, shift), b.sizes(squares));
    squares = b.maximum(b.sub(squares, more), b.full_like(squares, 0.0));
    mean = b.where(b.isnan(shift), mean, b.add(mean, shift));
  }
  ValueId var = kNoValue;
  if (n.is_const()) {
    var = b.div(squares, b.full_like(squares, std::max(0.0, static_cast<double>(n.value()) - correction)));
  } else {
    const ValueId count = b.full_like(squares, n);
    const ValueId zero = b.full_like(squares, 0.0);
    var = b.div(squares, b.maximum(zero, b.sub(count, b.full_like(squares, correction))));
  }
  outs.push_back(b.convert(var, dtype));
  outs.push_back(b.convert(b.reshape(mean, b.sizes(squares)), dtype));
}

// Over no element at all: the neutral element. Loops that never run would leave the merged ones with a wrong length.
bool expand_empty(Builder& b, const Node& node, std::vector<ValueId>& outs) {
  static constexpr std::pair<Prim, int> kNeutral[] = {{Prim::sum, 0}, {Prim::prod, 1}, {Prim::any, 0}, {Prim::all, 1}};
  for (auto [prim, neutral] : kNeutral) {
    if (node.op->prim != prim || !b.type(ops::as_value(node.args[0])).numel().is_const(0)) continue;
    const TensorType t = b.type(node.outs[0]);
    Arg scalar = sym::Expr(neutral);
    if (is_floating(t.dtype)) scalar = static_cast<double>(neutral);
    if (t.dtype == DType::kBool) scalar = neutral != 0;
    outs.push_back(b.full(t.sizes, std::move(scalar), t.dtype, t.device));
    return true;
  }
  return false;
}

// Windows side by side: the dims are cut into windows, which are reduced in a loop.
bool expand_tiled_pool(Builder& b, const Node& node, std::vector<ValueId>& outs) {
  const bool is_max = node.op->prim == Prim::max_pool;
  const std::vector<int64_t> kernel = ops::as_ints(node.args[1]);
  const std::vector<int64_t> dilation = is_max ? ops::as_ints(node.args[4]) : std::vector<int64_t>{};
  if (!ops::windows_tile(kernel, ops::as_ints(node.args[2]), ops::as_ints(node.args[3]), dilation) ||
      ops::as_bool(node.args[is_max ? 5 : 4]) || (!is_max && !is_none(node.args[6])))
    return false;
  ValueId x = ops::as_value(node.args[0]);
  const Sizes places = b.sizes(node.outs[0]);
  const size_t first = places.size() - kernel.size();
  Sizes wide(places.begin(), places.begin() + static_cast<std::ptrdiff_t>(first));
  std::vector<int64_t> within;
  int64_t count = 1;
  for (size_t i = 0; i < kernel.size(); ++i) {
    const size_t dim = first + i;
    if (!sym::known_eq(places[dim] * kernel[i], b.size(x, static_cast<int64_t>(dim))))
      x = b.slice(x, static_cast<int64_t>(dim), 0, places[dim] * kernel[i]);
    wide.push_back(places[dim]);
    within.push_back(static_cast<int64_t>(wide.size()));
    wide.push_back(kernel[i]);
    count *= kernel[i];
  }
  x = b.reshape(x, wide);
  if (is_max) {
    outs.push_back(b.amax(x, within));
  } else {
    const ValueId sum = b.sum(x, within);
    outs.push_back(b.div(sum, b.full_like(sum, static_cast<double>(count))));
  }
  return true;
}

void expand_max_pool(Builder& b, const Node& node, std::vector<ValueId>& outs) {
  const std::vector<int64_t> kernel = ops::as_ints(node.args[1]), stride = ops::as_ints(node.args[2]),
                             padding = ops::as_ints(node.args[3]), dilation = ops::as_ints(node.args[4]);
  ValueId x = ops::as_value(node.args[0]);
  for (size_t i = kernel.size(); i-- > 0;) {
    if (kernel[i] == 1 && stride[i] == 1 && padding[i] == 0) continue;
    const size_t n = kernel.size();
    std::vector<int64_t> k(n, 1), s(n, 1), p(n, 0), d(n, 1);
    k[i] = kernel[i], s[i] = stride[i], p[i] = padding[i], d[i] = dilation[i];
    x = b.max_pool(x, k, s, p, d, ops::as_bool(node.args[5]));
  }
  outs.push_back(x);
}

// Only where every window lies inside the input; elsewhere the long body stays.
bool expand_avg_pool(Builder& b, const Node& node, std::vector<ValueId>& outs) {
  const std::vector<int64_t> kernel = ops::as_ints(node.args[1]), stride = ops::as_ints(node.args[2]),
                             padding = ops::as_ints(node.args[3]);
  if (ops::as_bool(node.args[4]) || !is_none(node.args[6]) ||
      std::any_of(padding.begin(), padding.end(), [](int64_t p) { return p != 0; }))
    return false;
  ValueId x = ops::as_value(node.args[0]);
  for (size_t i = kernel.size(); i-- > 0;) {
    const size_t n = kernel.size();
    std::vector<int64_t> k(n, 1), s(n, 1), p(n, 0);
    k[i] = kernel[i], s[i] = stride[i];
    x = b.avg_pool(x, k, s, p, false, true);
  }
  outs.push_back(x);
  return true;
}

// ---- GPU: reductions that would leave most of the machine idle are cut into chunks, reduced in a second kernel.

struct Cut {
  std::vector<int64_t> whole;  // reduced dims that are kept as chunks, all of them
  int64_t dim = -1;            // a reduced dim that is cut
  int64_t chunks = 1;          // into so many
  int64_t padded = 0;          // elements to add to it
};
std::optional<Cut> gpu_cut(const TensorType& x, const std::vector<int64_t>& dims, int processors, bool exact) {
  const auto all = x.numel().as_const();
  if (!all || *all == 0 || dims.empty()) return std::nullopt;
  int64_t length = 1, smallest = 0;
  int64_t best_stride = INT64_MAX;
  for (size_t d = 0; d < x.rank(); ++d) {
    const auto s = x.strides.size() == x.rank() ? x.strides[d].as_const() : std::nullopt;
    if (!s) return std::nullopt;
    if (x.sizes[d].value() > 1 && *s > 0 && *s < best_stride) best_stride = *s, smallest = static_cast<int64_t>(d);
  }
  for (int64_t d : dims) length *= x.sizes[d].value();
  const int64_t rows = *all / length;
  const bool along = std::find(dims.begin(), dims.end(), smallest) != dims.end() || rows < 16;
  // Along memory a program takes rows of its own; across it takes 32 columns. Two kernels, and a row that cannot be
  // fused with what follows, must be worth it.
  const int64_t programs = along ? rows : (rows + 31) / 32, least = along ? 4096 : 256;
  if (length < int64_t{along ? 512 : 8} * processors) return std::nullopt;
  int64_t target = std::min((int64_t{4} * processors + programs - 1) / programs, length / least);
  if (programs >= int64_t{2} * processors || target < 2) return std::nullopt;
  std::vector<int64_t> order = dims;
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return x.strides[a].value() > x.strides[b].value(); });
  Cut cut;
  int64_t chunks = 1;
  for (int64_t d : order) {
    const int64_t size = x.sizes[d].value();
    if (size == 1) continue;
    if (chunks * size <= target + target / 2) {
      cut.whole.push_back(d);
      chunks *= size;
      continue;
    }
    const int64_t want = (target + chunks - 1) / chunks;
    if (want < 2) break;
    int64_t divisor = 0;
    for (int64_t k = std::max<int64_t>(2, want / 2); k <= want * 2 && k < size; ++k)
      if (size % k == 0 &&
          (divisor == 0 || std::max(k, want) * std::min(divisor, want) <= std::max(divisor, want) * std::min(k, want)))
        divisor = k;
    if (divisor == 0 && exact) break;
    cut.dim = d;
    cut.chunks = divisor ? divisor : want;
    if (!divisor) cut.padded = (size + want - 1) / want * want - size;
    break;
  }
  if (cut.whole.size() == dims.size()) return std::nullopt;  // cannot be: the target is shorter than the whole
  if (cut.dim < 0 && chunks < 2) return std::nullopt;
  return cut;
}
// x with the cut made: dims of x shift by one after the cut dim. `first`: what the first step reduces; `chunk_dims`:
// where the chunks are in x.
ValueId cut_open(Builder& b, ValueId x, const Cut& cut, const std::vector<int64_t>& dims, const Arg& padding,
                 std::vector<int64_t>& first, std::vector<int64_t>& chunk_dims) {
  if (cut.padded > 0) {
    Sizes lo(b.rank(x), 0), hi(b.rank(x), 0);
    hi[static_cast<size_t>(cut.dim)] = cut.padded;
    x = b.pad(x, lo, hi, padding);
  }
  Sizes sizes = b.sizes(x);
  if (cut.dim >= 0) {
    sizes[static_cast<size_t>(cut.dim)] = sizes[static_cast<size_t>(cut.dim)].value() / cut.chunks;
    sizes.insert(sizes.begin() + static_cast<std::ptrdiff_t>(cut.dim), cut.chunks);
    x = b.reshape(x, sizes);
    chunk_dims.push_back(cut.dim);
  }
  for (int64_t d : dims) {
    const int64_t now = cut.dim >= 0 && d >= cut.dim ? d + 1 : d;
    const bool whole = std::find(cut.whole.begin(), cut.whole.end(), d) != cut.whole.end();
    (whole ? chunk_dims : first).push_back(now);
  }
  std::sort(first.begin(), first.end());
  std::sort(chunk_dims.begin(), chunk_dims.end());
  return x;
}
// Where dims of x are after `gone` were reduced away.
std::vector<int64_t> positions(const std::vector<int64_t>& dims, const std::vector<int64_t>& gone) {
  std::vector<int64_t> out;
  out.reserve(dims.size());
  for (int64_t d : dims) out.push_back(d - std::count_if(gone.begin(), gone.end(), [&](int64_t g) { return g < d; }));
  return out;
}
// Two steps of it are as good as one.
bool is_folding(Prim prim) {
  return is_any_of(prim, {Prim::sum, Prim::prod, Prim::amax, Prim::amin, Prim::any, Prim::all});
}
Arg neutral_of(const Node& node, DType d) {
  if (is_any_of(node.op->prim, {Prim::sum, Prim::any}))
    return d == DType::kBool ? Arg(false) : is_floating(d) ? Arg(0.0) : Arg(sym::Expr(0));
  if (is_any_of(node.op->prim, {Prim::prod, Prim::all}))
    return d == DType::kBool ? Arg(true) : is_floating(d) ? Arg(1.0) : Arg(sym::Expr(1));
  const bool low = node.op->prim == Prim::amax;
  return low ? Arg(-std::numeric_limits<double>::infinity()) : Arg(std::numeric_limits<double>::infinity());
}
bool gpu_reduction(const graph::Graph& g, Builder& b, const Node& node, int processors, std::vector<ValueId>& outs) {
  if (!is_folding(node.op->prim)) return false;
  const std::vector<int64_t> dims = ops::as_ints(node.args[1]);
  const TensorType& type = g.type(ops::as_value(node.args[0]));
  const bool extreme = is_any_of(node.op->prim, {Prim::amax, Prim::amin});
  const auto cut = gpu_cut(type, dims, processors, extreme && !is_floating(type.dtype));
  if (!cut) return false;
  ValueId x = ops::as_value(node.args[0]);
  const DType dtype = b.dtype(x);
  if (is_reduced(dtype)) x = b.convert(x, DType::kF32);
  std::vector<int64_t> first, chunk_dims;
  x = cut_open(b, x, *cut, dims, neutral_of(node, b.dtype(x)), first, chunk_dims);
  const ValueId partial = b.emit(node.op->name, {Ref{x}, graph::int_list(first)});
  outs.push_back(
      b.convert(b.emit(node.op->name, {Ref{partial}, graph::int_list(positions(chunk_dims, first))}), dtype));
  return true;
}
// The input with dims `dims` flattened to one dim at the end, padded to a multiple of `chunks` and cut:
// [rest..., chunks, chunk].
ValueId flat_chunks(Builder& b, ValueId x, const std::vector<int64_t>& dims, int64_t chunks, int64_t length,
                    const Arg& padding) {
  std::vector<int64_t> order;
  Sizes sizes;
  for (size_t d = 0; d < b.rank(x); ++d)
    if (std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) == dims.end()) {
      order.push_back(static_cast<int64_t>(d));
      sizes.push_back(b.size(x, static_cast<int64_t>(d)));
    }
  order.insert(order.end(), dims.begin(), dims.end());
  x = b.permute(x, order);
  const int64_t chunk = (length + chunks - 1) / chunks, more = chunk * chunks - length;
  sizes.emplace_back(length);
  x = b.reshape(x, sizes);
  if (more > 0) {
    Sizes lo(sizes.size(), 0), hi(sizes.size(), 0);
    hi.back() = more;
    x = b.pad(x, lo, hi, padding);
  }
  sizes.back() = chunks;
  sizes.emplace_back(chunk);
  return b.reshape(x, sizes);
}
int64_t flat_target(const TensorType& x, const std::vector<int64_t>& dims, int processors, int64_t& length) {
  const auto all = x.numel().as_const();
  length = 1;
  if (!all || *all == 0) return 0;
  for (int64_t d : dims) length *= x.sizes[d].value();
  const int64_t rows = *all / length;
  if (length < int64_t{512} * processors || rows >= int64_t{2} * processors) return 0;
  return std::min(std::max<int64_t>(2, int64_t{4} * processors / rows), length / 2048);
}
// The position in each chunk, then the chunk: the value there is read again.
bool gpu_position(const graph::Graph& g, Builder& b, const Node& node, int processors, std::vector<ValueId>& outs) {
  if (!is_any_of(node.op->prim, {Prim::argmax, Prim::argmin})) return false;
  const std::vector<int64_t> dims = ops::as_ints(node.args[1]);
  const ValueId x = ops::as_value(node.args[0]);
  int64_t length = 0;
  const int64_t chunks = flat_target(g.type(x), dims, processors, length);
  const DType d = g.type(x).dtype;
  if (chunks < 2 || !is_floating(d)) return false;
  const double inf = std::numeric_limits<double>::infinity();
  // What is added stands behind everything real and wins over nothing: the first of equals is taken.
  const ValueId cut = flat_chunks(b, x, dims, chunks, length, Arg(node.op->prim == Prim::argmax ? -inf : inf));
  const auto last = static_cast<int64_t>(b.rank(cut)) - 1;
  const ValueId inside = b.emit(node.op->name, {Ref{cut}, graph::int_list({last})});  // [rest..., chunks]
  const ValueId values = b.squeeze(b.gather(cut, last, b.unsqueeze(inside, last)), last);
  const ValueId best_chunk = b.emit(node.op->name, {Ref{values}, graph::int_list({last - 1})});  // [rest...]
  const ValueId position = b.squeeze(b.gather(inside, last - 1, b.unsqueeze(best_chunk, last - 1)), last - 1);
  const int64_t chunk = b.size(cut, last).value();
  outs.push_back(b.add(b.mul(best_chunk, b.full_like(best_chunk, sym::Expr(chunk))), position));
  return true;
}
// Running sums of chunks, then what came before each chunk is added.
bool gpu_cumsum(const graph::Graph& g, Builder& b, const Node& node, int processors, std::vector<ValueId>& outs) {
  if (node.op->prim != Prim::cumsum) return false;
  const ValueId x = ops::as_value(node.args[0]);
  const int64_t dim = ops::as_int(node.args[1]);
  const auto last = static_cast<int64_t>(g.type(x).rank()) - 1;
  if (dim != last) return false;
  int64_t length = 0;
  const int64_t chunks = flat_target(g.type(x), {dim}, processors, length);
  if (chunks < 2) return false;
  const DType d = g.type(x).dtype;
  const ValueId wide = is_reduced(d) ? b.convert(x, DType::kF32) : x;
  const ValueId cut = flat_chunks(b, wide, {dim}, chunks, length, is_floating(d) ? Arg(0.0) : Arg(sym::Expr(0)));
  const ValueId inside = b.cumsum(cut, last + 1), sums = b.sum(cut, {last + 1});
  // Shifted, not "running minus own": an infinite chunk must not spoil itself.
  Sizes lo(b.rank(sums), 0), hi(b.rank(sums), 0);
  lo[static_cast<size_t>(last)] = 1;
  const Arg nothing = is_floating(d) ? Arg(0.0) : Arg(sym::Expr(0));
  const ValueId before = b.cumsum(b.slice(b.pad(sums, lo, hi, nothing), last, 0, chunks), last);
  ValueId all = b.add(inside, b.expand(b.unsqueeze(before, last + 1), b.sizes(inside)));
  Sizes sizes = b.sizes(x);
  sizes.back() = b.size(cut, last) * b.size(cut, last + 1);
  all = b.slice(b.reshape(all, sizes), last, 0, length);
  outs.push_back(b.convert(all, d));
  return true;
}
// Sums about the first element of each chunk, in one pass over memory, then Chan's formula. The chunk's own element is
// among those that are summed: however far off it lies, the squares' error is that far below the variance that it
// makes.
bool gpu_var(const graph::Graph& g, Builder& b, const Node& node, int processors, std::vector<ValueId>& outs) {
  const std::vector<int64_t> dims = ops::as_ints(node.args[1]);
  const auto cut = gpu_cut(g.type(ops::as_value(node.args[0])), dims, processors, true);
  if (!cut) return false;
  ValueId x = ops::as_value(node.args[0]);
  const DType dtype = b.dtype(x);
  if (is_reduced(dtype)) x = b.convert(x, DType::kF32);
  const double all = static_cast<double>(b.count(x, dims).value()), correction = ops::as_double(node.args[2]);
  std::vector<int64_t> first, chunk_dims;
  x = cut_open(b, x, *cut, dims, Arg(0.0), first, chunk_dims);
  const double each = static_cast<double>(b.count(x, first).value());
  ValueId origin = x;
  for (int64_t d : first) origin = b.slice(origin, d, 0, 1);
  // About an infinite element there would be no differences.
  origin = b.where(b.lt(b.abs(origin), b.full_like(origin, std::numeric_limits<double>::infinity())), origin,
                   b.full_like(origin, 0.0));
  const ValueId off = b.sub(x, b.expand(origin, b.sizes(x)));
  const ValueId rest = b.sum(off, first), squares = b.sum(b.mul(off, off), first);
  const auto scaled = [&](ValueId v, double by) { return b.mul(v, b.full_like(v, by)); };
  const ValueId shift = scaled(rest, 1 / each), means = b.add(b.reshape(origin, b.sizes(rest)), shift);
  const ValueId within = b.maximum(b.sub(squares, b.mul(rest, shift)), b.full_like(squares, 0.0));
  const std::vector<int64_t> at = positions(chunk_dims, first);
  const ValueId total = scaled(b.sum(means, at, true), each / all);
  const ValueId apart = b.sub(means, b.expand(total, b.sizes(means)));
  const ValueId sum = b.add(b.sum(within, at), scaled(b.sum(b.mul(apart, apart), at), each));
  const ValueId var = scaled(sum, 1 / std::max(0.0, all - correction));
  outs.push_back(b.convert(var, dtype));
  outs.push_back(b.convert(b.reshape(total, b.sizes(sum)), dtype));
  return true;
}

// A long reduction to few elements in two steps, so that threads can share the first. 0: leave it.
int64_t split_factor(const graph::Graph& g, const Node& node, const ScheduleOptions& options, size_t* split_dim) {
  if (!is_folding(node.op->prim)) return 0;
  const TensorType& x = g.type(ops::as_value(node.args[0]));
  const auto rows = g.type(node.outs[0]).numel().as_const(), all = x.numel().as_const();
  if (!rows || !all || *rows == 0 || *all / *rows < options.split_numel || *rows >= int64_t{2} * options.threads)
    return 0;
  const std::vector<int64_t> dims = ops::as_ints(node.args[1]);
  int64_t best = 0;
  for (int64_t d : dims) {
    const int64_t size = x.sizes[d].value();
    for (int64_t k : {16, 32, 8, 12, 24, 10, 14, 4, 7, 5}) {
      if (size % k != 0 || size == k || (best >= 4 && size <= x.sizes[*split_dim].value())) continue;
      best = k;
      *split_dim = static_cast<size_t>(d);
      break;
    }
  }
  return best;
}
void expand_reduction(Builder& b, const Node& node, int64_t chunks, size_t dim, std::vector<ValueId>& outs) {
  ValueId x = ops::as_value(node.args[0]);
  const DType dtype = b.dtype(x);
  if (is_reduced(dtype)) x = b.convert(x, DType::kF32);
  Sizes sizes = b.sizes(x);
  sizes[dim] = sizes[dim].value() / chunks;
  sizes.insert(sizes.begin() + static_cast<std::ptrdiff_t>(dim), chunks);
  std::vector<int64_t> first;
  for (int64_t d : ops::as_ints(node.args[1])) {
    if (d < static_cast<int64_t>(dim)) first.push_back(d);
    if (d >= static_cast<int64_t>(dim)) first.push_back(d + 1);
  }
  // Where the chunks stand after the first step.
  const auto position = static_cast<int64_t>(dim) - std::count_if(first.begin(), first.end(), [&](int64_t d) {
                          return d < static_cast<int64_t>(dim);
                        });
  const ValueId partial = b.emit(node.op->name, {Ref{b.reshape(x, sizes)}, graph::int_list(first)});
  outs.push_back(b.convert(b.emit(node.op->name, {Ref{partial}, graph::int_list({position})}), dtype));
}

}  // namespace

graph::Graph expand(const graph::Graph& core, const ScheduleOptions& options) {
  graph::Graph g = core;
  g.nodes.clear();
  for (const Node& node : core.nodes) {
    Builder b(g, node.location);
    std::vector<ValueId> outs;
    const size_t before = g.nodes.size();
    size_t dim = 0;
    const Prim prim = node.op->prim;
    if (options.processors > 0 && gpu_reduction(core, b, node, options.processors, outs)) {
    } else if (options.processors > 0 && gpu_position(core, b, node, options.processors, outs)) {
    } else if (options.processors > 0 && gpu_cumsum(core, b, node, options.processors, outs)) {
    } else if (options.processors > 0 && prim == Prim::var && gpu_var(core, b, node, options.processors, outs)) {
    } else if (options.processors > 0 && prim == Prim::var) {
      expand_var(b, node, true, outs);
    } else if (const int64_t chunks = options.processors > 0 ? 0 : split_factor(core, node, options, &dim)) {
      expand_reduction(b, node, chunks, dim, outs);
    } else if (expand_empty(b, node, outs)) {
    } else if (prim == Prim::var) {
      expand_var(b, node, false, outs);
    } else if ((prim == Prim::max_pool || prim == Prim::avg_pool) && window_size(node) > kLongestWindow &&
               expand_tiled_pool(b, node, outs)) {
    } else if (prim == Prim::max_pool && window_size(node) > kLongestWindow) {
      expand_max_pool(b, node, outs);
    } else if (prim == Prim::avg_pool && window_size(node) > kLongestWindow && expand_avg_pool(b, node, outs)) {
    } else {
      g.nodes.push_back(node);
      continue;
    }
    // The results keep their old numbers: rename the values in the new nodes.
    for (size_t i = 0; i < node.outs.size(); ++i) {
      if (node.outs[i] == kNoValue) continue;
      for (size_t n = before; n < g.nodes.size(); ++n) {
        for (ValueId& out : g.nodes[n].outs)
          if (out == outs[i]) out = node.outs[i];
        for (Arg& arg : g.nodes[n].args)
          if (auto* r = std::get_if<Ref>(&arg); r && r->id == outs[i]) r->id = node.outs[i];
      }
    }
  }
  return g;
}

}  // namespace flashover::loops
