// Pooling: the window is unrolled into the body, one masked load per position.
#include <limits>

#include "base/check.h"
#include "loops/lower/lower.h"
#include "ops/args.h"

namespace flashover::loops {

int64_t window_size(const graph::Node& node) {
  int64_t n = 1;
  for (int64_t k : ops::as_ints(node.args[1])) n *= k;
  return n;
}

namespace {

// Calls f(condition, from) for each window position; condition as from Emitter::in_range.
template <typename F>
void for_each_position(Emitter& e, const TensorType& x, const Index& at, const std::vector<int64_t>& kernel,
                       const std::vector<int64_t>& stride, const std::vector<int64_t>& padding,
                       const std::vector<int64_t>& dilation, F&& f) {
  const size_t first = at.size() - kernel.size();
  std::vector<int64_t> k(kernel.size(), 0);
  for (;;) {
    Index from = at;
    std::optional<Id> inside;
    bool impossible = false;
    for (size_t i = 0; i < kernel.size(); ++i) {
      from[first + i] = at[first + i] * stride[i] + (k[i] * dilation[i] - padding[i]);
      auto here = e.in_range(from[first + i], 0, x.sizes[first + i]);
      if (here && e.body()[*here].op == Op::k_const) impossible = true;
      if (here) inside = inside ? e.op(Op::k_bitwise_and, *inside, *here) : *here;
    }
    if (!impossible) f(inside, from);
    size_t i = kernel.size();
    while (i > 0 && ++k[i - 1] == kernel[i - 1]) k[--i] = 0;
    if (i == 0) return;
  }
}

Id max_pool(Emitter& e, const graph::Node& node, const Index& at) {
  const ValueId x = ops::as_value(node.args[0]);
  const DType d = compute_dtype(e.type(x).dtype);
  Id best = kNone;
  // What padding counts as, and where the maximum starts.
  Id lowest = is_floating(d)      ? e.constant(d, -std::numeric_limits<double>::infinity())
              : info(d).is_signed ? e.constant(d, -(int64_t{1} << (info(d).bytes * 8 - 2)) * 2)
                                  : e.constant(d, int64_t{0});
  for_each_position(e, e.type(x), at, ops::as_ints(node.args[1]), ops::as_ints(node.args[2]),
                    ops::as_ints(node.args[3]), ops::as_ints(node.args[4]),
                    [&](std::optional<Id> inside, const Index& from) {
                      Id v = kNone;
                      {
                        Emitter::Masked masked(e, inside);
                        v = e.read(x, from);
                      }
                      if (inside) v = e.op(Op::k_where, *inside, v, lowest);
                      best = best == kNone ? v : e.op(Op::k_maximum, best, v);
                    });
  return best == kNone ? lowest : best;
}

Id avg_pool(Emitter& e, const graph::Node& node, const Index& at) {
  const ValueId x = ops::as_value(node.args[0]);
  const TensorType& type = e.type(x);
  const DType d = compute_dtype(type.dtype);
  const std::vector<int64_t> kernel = ops::as_ints(node.args[1]), stride = ops::as_ints(node.args[2]),
                             padding = ops::as_ints(node.args[3]);
  const bool count_include_pad = ops::as_bool(node.args[5]);
  Id sum = kNone;
  for_each_position(e, type, at, kernel, stride, padding, std::vector<int64_t>(kernel.size(), 1),
                    [&](std::optional<Id> inside, const Index& from) {
                      Id v = kNone;
                      {
                        Emitter::Masked masked(e, inside);
                        v = e.read(x, from);
                      }
                      if (inside) v = e.op(Op::k_where, *inside, v, e.constant(d, int64_t{0}));
                      sum = sum == kNone ? v : e.op(Op::k_add, sum, v);
                    });
  if (sum == kNone) sum = e.constant(d, int64_t{0});
  Id divisor = kNone;
  if (!is_none(node.args[6])) {
    divisor = e.constant(d, node.args[6]);
  } else {
    sym::Expr count = 1;
    const size_t first = at.size() - kernel.size();
    for (size_t i = 0; i < kernel.size(); ++i) {
      const sym::Expr begin = at[first + i] * stride[i] - padding[i], size = type.sizes[first + i];
      const sym::Expr end = sym::min(begin + kernel[i], size + padding[i]);
      count *= count_include_pad ? end - begin : sym::min(end, size) - sym::max(begin, 0);
    }
    divisor = e.convert(e.index_value(count), d);
    if (count.is_const()) divisor = e.constant(d, count.value());
  }
  return is_floating(d) ? e.op(Op::k_div, sum, divisor) : e.op(Op::k_truncdiv, sum, divisor);
}

}  // namespace

void add_windows(std::vector<LoweringRow>& rows) {
  rows.insert(rows.end(), {{Prim::max_pool, max_pool}, {Prim::avg_pool, avg_pool}});
}

}  // namespace flashover::loops
