// Operators that derivative formulas call.
#include "graph/decompose/rules.h"

namespace flashover::graph::rules {
namespace {

bool threshold_backward(Builder& b, const Node& n, Outs& outs) {  // (grad, self, threshold)
  DType d = result(b, n).dtype, m = math(d);
  if (!scalar_fits(arg(n, 2), d)) return false;
  ValueId g = in(n, 0), x = b.convert(in(n, 1), m);
  ValueId below = b.le(x, operand_via(b, n, 2, d, m));
  return done(b, b.where(below, b.full({}, *scalar_in(sym::Expr(0), d), d, result(b, n).device), g), d, outs);
}
bool sigmoid_backward(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  ValueId g = b.convert(in(n, 0), math(d)), y = b.convert(in(n, 1), math(d));
  return done(b, b.mul(g, b.mul(b.sub(constant(b, y, 1), y), y)), d, outs);
}
bool tanh_backward(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  ValueId g = b.convert(in(n, 0), math(d)), y = b.convert(in(n, 1), math(d));
  return done(b, b.mul(g, b.sub(constant(b, y, 1), b.mul(y, y))), d, outs);
}
bool silu_backward(Builder& b, const Node& n, Outs& outs) {
  DType d = result(b, n).dtype;
  ValueId g = b.convert(in(n, 0), math(d)), x = b.convert(in(n, 1), math(d));
  ValueId s = b.sigmoid(x), one = constant(b, x, 1);
  return done(b, b.mul(b.mul(g, s), b.add(one, b.mul(x, b.sub(one, s)))), d, outs);
}
template <bool log>
bool softmax_backward(Builder& b, const Node& n, Outs& outs) {  // (grad, output, dim, input_dtype)
  auto over = dims(b, arg(n, 2), in(n, 0));
  DType d = result(b, n).dtype;
  if (!over) return false;
  ValueId g = b.convert(in(n, 0), math(d)), y = b.convert(in(n, 1), math(d));
  if (log) return done(b, b.sub(g, b.mul(b.exp(y), b.sum(g, *over, true))), d, outs);
  ValueId gy = b.mul(g, y);
  return done(b, b.sub(gy, b.mul(y, b.sum(gy, *over, true))), d, outs);
}

}  // namespace

void add_backward(DecompositionRows& r) {
  add<threshold_backward>(r, {"aten.threshold_backward.default"});
  add<sigmoid_backward>(r, {"aten.sigmoid_backward.default"});
  add<tanh_backward>(r, {"aten.tanh_backward.default"});
  add<silu_backward>(r, {"aten.silu_backward.default"});
  add<softmax_backward<false>>(r, {"aten._softmax_backward_data.default"});
  add<softmax_backward<true>>(r, {"aten._log_softmax_backward_data.default"});
}

}  // namespace flashover::graph::rules
