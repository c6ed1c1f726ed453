// Looks at each product for a sigmoid of the other factor.
#include "graph/passes/recognize_silu.h"

#include "graph/rewrite/match.h"
#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

// x * s or s * x, where s is sigmoid(x) and nobody else reads it: a gradient that reads it needs it in memory anyway.
bool product(Rewriter& r, const Node& n, std::vector<ValueId>& results, const void* user) {
  const TensorType type = r.b.type(n.outs[0]);
  // The operator rounds once, where the program rounds the sigmoid too.
  if (static_cast<const Providers*>(user)->strict_numerics || !is_floating(type.dtype)) return false;
  for (size_t i = 0; i < 2; ++i) {
    if (!std::holds_alternative<Ref>(n.args[0]) || !std::holds_alternative<Ref>(n.args[1])) return false;
    const ValueId x = ops::as_value(n.args[i]), s = ops::as_value(n.args[1 - i]);
    const Node* sigmoid = r.def(s, op::sigmoid);
    if (!sigmoid || r.uses(s) != 1 || ops::as_value(sigmoid->args[0]) != x || r.b.dtype(x) != type.dtype) continue;
    results = {r.b.emit(op::silu, {Ref{x}}, type)};
    return true;
  }
  return false;
}

constexpr RewriteRule kRules[] = {{op::mul_Tensor, "x * sigmoid(x) -> silu(x)", product}};

}  // namespace

Graph recognize_silu(Graph g, const Providers& providers) { return rewrite(std::move(g), kRules, &providers); }

}  // namespace flashover::graph
