// Knows the ranges of random numbers and of what follows from numbers alone, and decides comparisons from them.
#include "trace/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "graph/written.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::trace {
namespace {

// Numbers between two others; what is computed of them stays between what is computed of these, since rounding keeps
// the order.
struct DrawRange {
  double low = 0, high = 0;
  bool reaches_high = true;  // NaN is never within
};

constexpr int kMostSteps = 64;
constexpr double kLargestInteger = 1 << 30;

bool writes(const graph::Graph& g, const graph::Node& n, int32_t storage) {
  bool found = false;
  graph::for_each_written(n, [&](ValueId v) { found = found || g.values[v].storage == storage; });
  return found;
}

std::optional<bool> less(const DrawRange& a, const DrawRange& b) {  // a < b
  if (a.high < b.low || (a.high == b.low && !a.reaches_high)) return true;
  if (a.low >= b.high) return false;
  return std::nullopt;
}

std::optional<DrawRange> either(const std::optional<DrawRange>& a, const std::optional<DrawRange>& b) {
  if (!a || !b) return std::nullopt;
  return DrawRange{std::min(a->low, b->low), std::max(a->high, b->high), true};
}

std::optional<DrawRange> of_number(const Arg& number) {
  const auto* e = std::get_if<sym::Expr>(&number);
  if (!ops::is_scalar(number) || std::holds_alternative<std::complex<double>>(number) || (e && !e->is_const()))
    return std::nullopt;
  const double c = ops::as_double(number);
  return c == c ? std::optional(DrawRange{c, c, true}) : std::nullopt;
}

// Between the least and the largest of these, as the dtype rounds them. nullopt: one may be NaN, or wrap.
std::optional<DrawRange> rounded(DType dtype, std::initializer_list<double> corners) {
  DrawRange out{std::min(corners), std::max(corners), true};
  if (std::ranges::any_of(corners, [](double c) { return c != c; })) return std::nullopt;
  if (dtype == DType::kI64 || dtype == DType::kI32)
    return std::max(std::abs(out.low), std::abs(out.high)) <= kLargestInteger ? std::optional(out) : std::nullopt;
  if (!is_floating(dtype)) return std::nullopt;
  constexpr double kCoarsest = 1.0 / 64;  // more than any float rounds by, but for overflow
  const double largest = dtype == DType::kF16 ? 6e4 : 1e38, inf = std::numeric_limits<double>::infinity();
  // (Whole numbers up to 256 every float has: what is on one side of them is not rounded past them.)
  const auto is_exact = [](double b) { return b == std::trunc(b) && std::abs(b) <= 256; };
  if (!is_exact(out.low)) out.low -= std::abs(out.low) * kCoarsest;
  if (!is_exact(out.high)) out.high += std::abs(out.high) * kCoarsest;
  if (out.low < -largest) out.low = -inf;
  if (out.high > largest) out.high = inf;
  return out;
}

// Of values that follow from numbers, and of random ones, as they are before some node of the graph runs.
class Bounds {
 public:
  explicit Bounds(const graph::Graph& g) : g_(g) {}

  // The truth of all elements.
  std::optional<bool> truth(ValueId value, size_t before) {
    const std::optional<size_t> at = maker(value, before);
    if (!at || g_.nodes[*at].args.empty()) return std::nullopt;
    const graph::Node& n = g_.nodes[*at];
    const std::string_view name = n.op->name;
    if (const auto compared = comparison(n, *at)) return compared;
    if (op::is_any_of(name, {op::any, op::all})) {
      const auto each = truth(ops::as_value(n.args[0]), *at);
      return each == (name.starts_with("aten.all")) ? each : std::nullopt;  // also of no elements
    }
    if (op::is_any_of(name, {op::logical_not, op::bitwise_not}) && g_.type(value).dtype == DType::kBool) {
      const auto other = truth(ops::as_value(n.args[0]), *at);
      return other ? std::optional(!*other) : std::nullopt;
    }
    const auto bounds = made(n, value, *at);
    if (!bounds) return std::nullopt;
    if (bounds->low > 0 || bounds->high < 0) return true;
    return bounds->low == 0 && bounds->high == 0 ? std::optional(false) : std::nullopt;
  }

 private:
  // The node whose result the value still is; nullopt: there is none, something else wrote its memory, or enough was
  // looked at.
  std::optional<size_t> maker(ValueId value, size_t before) {
    const int32_t storage = value == kNoValue ? -1 : g_.values[value].storage;
    if (storage < 0 || ++steps_ > kMostSteps) return std::nullopt;
    for (size_t at = before; at-- > 0;) {
      const graph::Node& n = g_.nodes[at];
      if (std::ranges::find(n.outs, value) != n.outs.end()) return at;
      if (writes(g_, n, storage)) return std::nullopt;
    }
    return std::nullopt;
  }

  std::optional<DrawRange> of(ValueId value, size_t before) {
    if (value == kNoValue) return std::nullopt;
    if (g_.type(value).dtype == DType::kBool) {
      const auto known = truth(value, before);
      return known ? DrawRange{*known ? 1.0 : 0.0, *known ? 1.0 : 0.0} : DrawRange{0, 1};
    }
    const std::optional<size_t> at = maker(value, before);
    return at ? made(g_.nodes[*at], value, *at) : std::nullopt;
  }
  std::optional<DrawRange> of(const Arg& a, size_t before) {
    const auto* r = std::get_if<Ref>(&a);
    return r ? of(r->id, before) : of_number(a);
  }

  std::optional<bool> comparison(const graph::Node& n, size_t at) {
    if (n.args.size() < 2) return std::nullopt;
    const std::string_view name = n.op->name;
    const bool lt = op::is_any_of(name, {op::lt_Tensor}), gt = op::is_any_of(name, {op::gt_Tensor}),
               le = op::is_any_of(name, {op::le_Tensor}), ge = op::is_any_of(name, {op::ge_Tensor}),
               eq = op::is_any_of(name, {op::eq_Tensor}), ne = op::is_any_of(name, {op::ne_Tensor});
    if (!lt && !gt && !le && !ge && !eq && !ne) return std::nullopt;
    const auto a = of(n.args[0], at), b = of(n.args[1], at);
    if (!a || !b) return std::nullopt;
    if (eq || ne) return less(*a, *b) == true || less(*b, *a) == true ? std::optional(ne) : std::nullopt;
    if (lt) return less(*a, *b);
    if (gt) return less(*b, *a);
    const auto reverse = le ? less(*b, *a) : less(*a, *b);  // a <= b is !(b < a): there is no NaN
    return reverse ? std::optional(!*reverse) : std::nullopt;
  }

  std::optional<DrawRange> made(const graph::Node& n, ValueId value, size_t at) {
    const std::string_view name = n.op->name;
    const DType dtype = g_.type(value).dtype;
    const auto arg = [&](size_t i) { return i < n.args.size() ? of(n.args[i], at) : std::nullopt; };
    if (op::is_any_of(name, {op::index_put_})) return put(n, dtype, at);
    if (n.op->mutates != 0) return std::nullopt;
    if (op::is_any_of(name, {op::rand, op::rand_like})) return DrawRange{0, 1, false};
    if (n.op->prim == Prim::full || op::is_any_of(name, {op::full, op::full_like})) return converted(dtype, arg(1));
    if (op::is_any_of(name, {op::new_full})) return converted(dtype, arg(2));
    if (op::is_any_of(name, {op::scalar_tensor})) return converted(dtype, arg(0));
    if (op::is_any_of(name, {op::ones, op::ones_like, op::new_ones})) return DrawRange{1, 1};
    if (op::is_any_of(name, {op::zeros, op::zeros_like, op::new_zeros})) return DrawRange{0, 0};
    // (Not as_strided, which sees more of the memory, nor what sees other numbers in it.)
    if (op::is_any_of(name, {op::view, op::detach, op::alias, op::unsqueeze, op::clone, op::select_int, op::squeeze,
                             op::expand, op::slice_Tensor, op::permute, op::_unsafe_view}))
      return g_.type(ops::as_value(n.args[0])).dtype == dtype ? arg(0) : std::nullopt;
    if (op::is_any_of(name, {op::_to_copy})) return converted(dtype, arg(0));
    if (op::is_any_of(name, {op::constant_pad_nd})) return either(arg(0), converted(dtype, arg(2)));
    if (op::is_any_of(name, {op::where_self})) return either(arg(1), arg(2));
    if (op::is_any_of(name, {op::masked_fill_Scalar}))
      return either(is_filled_unless_zero(n, at) ? DrawRange{0, 0} : arg(0), converted(dtype, arg(2)));
    if (op::is_any_of(name, {op::cat})) {
      const RefList parts = ops::as_values(n.args[0]);
      std::optional<DrawRange> all = parts.empty() ? std::nullopt : of(parts[0].id, at);
      for (const Ref& part : parts) all = either(all, of(part.id, at));
      return all;
    }
    return combined(n, dtype, at);
  }

  // x.masked_fill(x.bool(), number)
  bool is_filled_unless_zero(const graph::Node& n, size_t at) {
    const ValueId x = ops::as_value(n.args[0]);
    const std::optional<size_t> mask = maker(ops::as_value(n.args[1]), at);
    if (!mask || !maker(x, at)) return false;
    const graph::Node& m = g_.nodes[*mask];
    return op::is_any_of(m.op->name, {op::_to_copy}) && ops::as_value(m.args[0]) == x;
  }

  // x[mask] = number
  std::optional<DrawRange> put(const graph::Node& n, DType dtype, size_t at) {
    const RefList indices = ops::as_values(n.args[1]);
    const auto before = of(n.args[0], at);
    const bool is_mask =
        indices.size() == 1 && indices[0].id != kNoValue && g_.type(indices[0].id).dtype == DType::kBool;
    if (is_mask && truth(indices[0].id, at) == false) return before;
    if (ops::as_bool(n.args[3])) return std::nullopt;
    return either(before, converted(dtype, of(n.args[2], at)));
  }

  std::optional<DrawRange> combined(const graph::Node& n, DType dtype, size_t at) {
    const std::string_view name = n.op->name;
    const bool minus = op::is_any_of(name, {op::sub_Tensor}), reversed = op::is_any_of(name, {op::rsub_Scalar}),
               times = op::is_any_of(name, {op::mul_Tensor});
    if (!minus && !reversed && !times && !op::is_any_of(name, {op::add_Tensor})) return std::nullopt;
    if (!times && !(n.args.size() > 2 && ops::is_number(n.args[2], 1))) return std::nullopt;
    auto a = of(n.args[0], at), b = of(n.args[1], at);
    if (!a || !b) return std::nullopt;
    if (times) return rounded(dtype, {a->low * b->low, a->low * b->high, a->high * b->low, a->high * b->high});
    if (reversed) std::swap(a, b);
    if (minus || reversed)
      return rounded(dtype, {a->low - b->low, a->low - b->high, a->high - b->low, a->high - b->high});
    return rounded(dtype, {a->low + b->low, a->low + b->high, a->high + b->low, a->high + b->high});
  }

  static std::optional<DrawRange> converted(DType to, const std::optional<DrawRange>& x) {
    if (!x) return x;
    const bool exact = to == DType::kF64 || (to == DType::kF32 && static_cast<float>(x->low) == x->low);
    if (x->low == x->high && (x->low == 0 || x->low == 1 || exact)) return x;  // every dtype has 0 and 1
    if (to == DType::kBool) return x->low > 0 || x->high < 0 ? DrawRange{1, 1} : DrawRange{0, 1};
    if (is_floating(to)) return rounded(to, {x->low, x->high});
    return rounded(to, {std::trunc(x->low), std::trunc(x->high)});
  }

  const graph::Graph& g_;
  int steps_ = 0;
};

}  // namespace

std::optional<bool> known_truth(const graph::Graph& g, ValueId value) { return Bounds(g).truth(value, g.nodes.size()); }

}  // namespace flashover::trace
