// Knows the ranges of random numbers, and decides comparisons with constants from them.
#include "trace/bounds.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "ops/args.h"
#include "ops/names.h"

namespace flashover::trace {
namespace {

struct DrawRange {
  double low = 0, high = 0;
  bool reaches_high = true;  // NaN is never within
};

// The node that made the value, if nothing else writes its memory.
const graph::Node* only_maker(const graph::Graph& g, ValueId value) {
  const int32_t storage = g.values[value].storage;
  const graph::Node* maker = nullptr;
  for (const graph::Node& n : g.nodes) {
    if (std::find(n.outs.begin(), n.outs.end(), value) != n.outs.end()) maker = &n;
    bool writes = false;
    for (size_t i = 0; i < n.args.size() && i < 32; ++i)
      if (n.op->mutates >> i & 1)
        graph::for_each_ref(n.args[i], [&](ValueId v) { writes = writes || g.values[v].storage == storage; });
    if (writes) return nullptr;
  }
  return storage < 0 ? nullptr : maker;
}

std::optional<DrawRange> bounds_of(const graph::Graph& g, ValueId value) {
  const graph::Node* n = only_maker(g, value);
  if (!n) return std::nullopt;
  const std::string_view name = n->op->name;
  if (op::is_any_of(name, {op::rand, op::rand_like})) return DrawRange{0, 1, false};
  if (op::is_any_of(name, {op::view, op::detach, op::alias, op::unsqueeze, op::clone, op::select_int, op::squeeze}))
    return bounds_of(g, ops::as_value(n->args[0]));
  if (n->op->prim == Prim::full) {
    const Arg& number = n->args[1];
    if (!ops::is_scalar(number) || std::holds_alternative<std::complex<double>>(number)) return std::nullopt;
    const auto* e = std::get_if<sym::Expr>(&number);
    if (e && !e->is_const()) return std::nullopt;
    const double c = ops::as_double(number);
    if (c == c) return DrawRange{c, c, true};
  }
  return std::nullopt;
}

std::optional<bool> less(const DrawRange& a, const DrawRange& b) {  // a < b
  if (a.high < b.low || (a.high == b.low && !a.reaches_high)) return true;
  if (a.low >= b.high) return false;
  return std::nullopt;
}

}  // namespace

std::optional<bool> known_truth(const graph::Graph& g, ValueId comparison) {
  const graph::Node* n = only_maker(g, comparison);
  if (!n || n->args.size() < 2) return std::nullopt;
  const std::string_view name = n->op->name;
  const bool lt = op::is_any_of(name, {op::lt_Tensor}), gt = op::is_any_of(name, {op::gt_Tensor}),
             le = op::is_any_of(name, {op::le_Tensor}), ge = op::is_any_of(name, {op::ge_Tensor});
  if (!lt && !gt && !le && !ge) return std::nullopt;
  const auto operand = [&](const Arg& a) -> std::optional<DrawRange> {
    if (const auto* r = std::get_if<Ref>(&a)) return r->id == kNoValue ? std::nullopt : bounds_of(g, r->id);
    const auto* e = std::get_if<sym::Expr>(&a);
    if (!ops::is_scalar(a) || std::holds_alternative<std::complex<double>>(a) || (e && !e->is_const()))
      return std::nullopt;
    const double c = ops::as_double(a);
    return c == c ? std::optional(DrawRange{c, c, true}) : std::nullopt;
  };
  const auto a = operand(n->args[0]), b = operand(n->args[1]);
  if (!a || !b) return std::nullopt;
  if (lt) return less(*a, *b);
  if (gt) return less(*b, *a);
  const auto reverse = le ? less(*b, *a) : less(*a, *b);  // a <= b is !(b < a): there is no NaN
  return reverse ? std::optional(!*reverse) : std::nullopt;
}

}  // namespace flashover::trace
