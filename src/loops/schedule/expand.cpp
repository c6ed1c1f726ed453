#include "loops/schedule/expand.h"

#include <algorithm>

#include "graph/builder.h"
#include "loops/lower/lower.h"
#include "ops/args.h"

namespace flashover::loops {
namespace {

using graph::Builder;
using graph::Node;

constexpr int64_t kLongestWindow = 36;  // positions unrolled into one body

// Centred squares in a second pass: exact where sum(x^2) - mean^2 cancels, and the row is in cache.
void expand_var(Builder& b, const Node& node, std::vector<ValueId>& outs) {
  const ValueId x = ops::as_value(node.args[0]);
  const std::vector<int64_t> dims = ops::as_ints(node.args[1]);
  const double correction = ops::as_double(node.args[2]);
  const DType dtype = b.dtype(x);
  const ValueId wide = is_reduced(dtype) ? b.convert(x, DType::kF32) : x;
  const sym::Expr n = b.count(x, dims);
  const ValueId sum = b.sum(wide, dims, true);
  const ValueId mean = b.div(sum, b.full_like(sum, n));
  const ValueId centred = b.sub(wide, mean);
  const ValueId squares = b.sum(b.mul(centred, centred), dims, false);
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

void expand_max_pool(Builder& b, const Node& node, std::vector<ValueId>& outs) {
  const std::vector<int64_t> kernel = ops::as_ints(node.args[1]), stride = ops::as_ints(node.args[2]), padding = ops::as_ints(node.args[3]),
                             dilation = ops::as_ints(node.args[4]);
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
  const std::vector<int64_t> kernel = ops::as_ints(node.args[1]), stride = ops::as_ints(node.args[2]), padding = ops::as_ints(node.args[3]);
  if (ops::as_bool(node.args[4]) || !is_none(node.args[6]) || std::any_of(padding.begin(), padding.end(), [](int64_t p) { return p != 0; }))
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

// A long reduction to few elements in two steps, so that threads can share the first. 0: leave it.
int64_t split_factor(const graph::Graph& g, const Node& node, const ExpandOptions& options, size_t* split_dim) {
  static constexpr const char* kNames[] = {"prim.sum", "prim.prod", "prim.amax", "prim.amin", "prim.any", "prim.all"};
  if (std::find(std::begin(kNames), std::end(kNames), node.op->name) == std::end(kNames)) return 0;
  const TensorType& x = g.type(ops::as_value(node.args[0]));
  const auto rows = g.type(node.outs[0]).numel().as_const(), all = x.numel().as_const();
  if (!rows || !all || *rows == 0 || *all / *rows < options.split_numel || *rows >= 2 * options.threads) return 0;
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
void expand_reduction(Builder& b, const Node& node, int64_t parts, size_t dim, std::vector<ValueId>& outs) {
  ValueId x = ops::as_value(node.args[0]);
  const DType dtype = b.dtype(x);
  if (is_reduced(dtype)) x = b.convert(x, DType::kF32);
  Sizes sizes = b.sizes(x);
  sizes[dim] = sizes[dim].value() / parts;
  sizes.insert(sizes.begin() + static_cast<std::ptrdiff_t>(dim), parts);
  std::vector<int64_t> first;
  for (int64_t d : ops::as_ints(node.args[1])) {
    if (d < static_cast<int64_t>(dim)) first.push_back(d);
    if (d >= static_cast<int64_t>(dim)) first.push_back(d + 1);
  }
  // Where the parts stand after the first step.
  const auto position = static_cast<int64_t>(dim) - std::count_if(first.begin(), first.end(), [&](int64_t d) { return d < static_cast<int64_t>(dim); });
  const ValueId partial = b.emit(node.op->name, {Ref{b.reshape(x, sizes)}, graph::int_list(first)});
  outs.push_back(b.convert(b.emit(node.op->name, {Ref{partial}, graph::int_list({position})}), dtype));
}

}  // namespace

graph::Graph expand(const graph::Graph& core, const ExpandOptions& options) {
  static const ops::Op* const var = ops::find("prim.var");
  static const ops::Op* const max_pool = ops::find("prim.max_pool");
  static const ops::Op* const avg_pool = ops::find("prim.avg_pool");
  graph::Graph g = core;
  g.nodes.clear();
  for (const Node& node : core.nodes) {
    Builder b(g, node.location);
    std::vector<ValueId> outs;
    const size_t before = g.nodes.size();
    size_t dim = 0;
    if (const int64_t parts = split_factor(core, node, options, &dim)) {
      expand_reduction(b, node, parts, dim, outs);
    } else if (node.op == var) {
      expand_var(b, node, outs);
    } else if (node.op == max_pool && window_size(node) > kLongestWindow) {
      expand_max_pool(b, node, outs);
    } else if (node.op == avg_pool && window_size(node) > kLongestWindow && expand_avg_pool(b, node, outs)) {
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
