// See symbolic.h.
#include "graph/analysis/symbolic.h"

#include <algorithm>

namespace flashover::graph {
namespace {
bool holds_symbol(const Sizes& s) { return std::ranges::any_of(s, sym::has_size_symbol); }
bool holds_symbol(const Arg& a) {
  if (const auto* e = std::get_if<sym::Expr>(&a)) return sym::has_size_symbol(*e);
  const auto* l = std::get_if<Sizes>(&a);
  return l && holds_symbol(*l);
}
}  // namespace

bool is_symbolic(const TensorType& t) {
  return holds_symbol(t.sizes) || holds_symbol(t.strides) || sym::has_size_symbol(t.offset);
}

bool is_symbolic(const Graph& g, const Node& n) {
  return std::ranges::any_of(n.args, [](const Arg& a) { return holds_symbol(a); }) ||
         std::ranges::any_of(n.outs, [&](ValueId v) { return v != kNoValue && is_symbolic(g.type(v)); });
}

}  // namespace flashover::graph
