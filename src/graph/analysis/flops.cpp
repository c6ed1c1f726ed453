// A formula for each operator that multiplies matrices; the others count elements.
#include "graph/analysis/flops.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <unordered_map>

#include "ops/args.h"

namespace flashover::graph {
namespace {

std::optional<double> known_elements(const TensorType& t) {
  double n = 1;
  for (const sym::Expr& size : t.sizes) {
    const auto known = size.as_const();
    if (!known) return std::nullopt;
    n *= static_cast<double>(*known);
  }
  return n;
}

struct CountedNode {
  const Graph& g;
  const Node& n;
  const TensorType* arg(size_t i) const {
    if (i >= n.args.size()) return nullptr;
    const Ref* r = std::get_if<Ref>(&n.args[i]);
    return r && r->id != kNoValue ? &g.type(r->id) : nullptr;
  }
  const TensorType* out() const { return !n.outs.empty() && n.outs[0] != kNoValue ? &g.type(n.outs[0]) : nullptr; }
};

// Of one row of a weight: what each element of a convolution's result takes.
std::optional<double> weight_row(const TensorType& weight) {
  const auto all = known_elements(weight);
  if (!all || weight.rank() == 0) return std::nullopt;
  const auto rows = weight.sizes[0].as_const().value_or(0);
  return rows > 0 ? std::optional(*all / static_cast<double>(rows)) : std::nullopt;
}

// `left` times a matrix with as many columns as the result has.
std::optional<double> product_flops(const CountedNode& c, size_t left) {
  const TensorType *a = c.arg(left), *out = c.out();
  if (!a || !out || a->rank() == 0) return std::nullopt;
  const auto result = known_elements(*out);
  const auto inner = a->sizes.back().as_const();
  return result && inner ? std::optional(2 * *result * static_cast<double>(*inner)) : std::nullopt;
}

std::optional<double> convolution_flops(const CountedNode& c) {
  const TensorType *input = c.arg(0), *weight = c.arg(1), *out = c.out();
  if (!input || !weight || !out || c.n.args.size() < 7) return std::nullopt;
  const auto places = known_elements(ops::as_bool(c.n.args[6]) ? *input : *out), row = weight_row(*weight);
  return places && row ? std::optional(2 * *places * *row) : std::nullopt;
}

// The gradient of the input and that of the weight are as much work as the convolution, each.
std::optional<double> convolution_backward_flops(const CountedNode& c) {
  const TensorType *grad = c.arg(0), *input = c.arg(1), *weight = c.arg(2);
  if (!grad || !input || !weight || c.n.args.size() < 8) return std::nullopt;
  const auto places = known_elements(ops::as_bool(c.n.args[7]) ? *input : *grad), row = weight_row(*weight);
  double wanted = 0;
  for (size_t i = 0; i < std::min<size_t>(c.n.outs.size(), 2); ++i) wanted += c.n.outs[i] != kNoValue;
  return places && row ? std::optional(2 * wanted * *places * *row) : std::nullopt;
}

// first: the argument that is the query; key and value follow. narrow, wide: how many products have the key's depth
// and how many the value's.
std::optional<double> attention_flops(const CountedNode& c, size_t first, double narrow, double wide) {
  const TensorType *query = c.arg(first), *key = c.arg(first + 1), *value = c.arg(first + 2);
  if (!query || !key || !value || query->rank() < 2 || key->rank() < 2 || value->rank() < 1) return std::nullopt;
  const auto all = known_elements(*query);
  const auto depth = query->sizes.back().as_const(), keys = key->sizes[key->rank() - 2].as_const(),
             width = value->sizes.back().as_const();
  if (!all || !depth || !keys || !width || *depth == 0) return std::nullopt;
  const double pairs = *all / static_cast<double>(*depth) * static_cast<double>(*keys);
  return 2 * pairs * (narrow * static_cast<double>(*depth) + wide * static_cast<double>(*width));
}

using FlopFormula = std::optional<double> (*)(const CountedNode&);

FlopFormula flop_formula(std::string_view name) {
  static const std::unordered_map<std::string_view, FlopFormula> table = {
      {"mm", [](const CountedNode& c) { return product_flops(c, 0); }},
      {"bmm", [](const CountedNode& c) { return product_flops(c, 0); }},
      {"matmul", [](const CountedNode& c) { return product_flops(c, 0); }},
      {"linear", [](const CountedNode& c) { return product_flops(c, 0); }},
      {"mv", [](const CountedNode& c) { return product_flops(c, 0); }},
      {"dot", [](const CountedNode& c) { return product_flops(c, 0); }},
      {"addmm", [](const CountedNode& c) { return product_flops(c, 1); }},
      {"addmv", [](const CountedNode& c) { return product_flops(c, 1); }},
      {"baddbmm", [](const CountedNode& c) { return product_flops(c, 1); }},
      {"convolution", &convolution_flops},
      {"convolution_overrideable", &convolution_flops},
      {"convolution_backward", &convolution_backward_flops},
  };
  if (const auto found = table.find(name); found != table.end()) return found->second;
  if (!name.starts_with("_scaled_dot_product_")) return nullptr;
  if (name.find("backward") == std::string_view::npos)
    return [](const CountedNode& c) { return attention_flops(c, 0, 1, 1); };
  return [](const CountedNode& c) { return attention_flops(c, 1, 3, 2); };
}

// Nothing is computed: it moves, makes or names elements.
bool computes_nothing(const CountedNode& c, std::string_view name) {
  for (const std::string_view moving : {"clone", "copy_", "_to_copy", "empty", "full", "zeros", "ones", "arange", "cat",
                                        "gather", "index", "embedding", "scatter", "where", "slice", "as_strided"})
    if (name.starts_with(moving)) return true;
  const TensorType* out = c.out();
  if (!out) return true;
  const int32_t storage = c.g.values[c.n.outs[0]].storage;
  bool view = false;
  for (const Arg& a : c.n.args)
    for_each_ref(a, [&](ValueId v) { view |= storage >= 0 && c.g.values[v].storage == storage; });
  return view && c.n.op->mutates == 0;
}

std::optional<double> node_flops(const Graph& g, const Node& n) {
  std::string_view name = n.op->name;
  if (const size_t dot = name.find('.'); dot != std::string_view::npos) name.remove_prefix(dot + 1);
  name = name.substr(0, name.find('.'));
  const CountedNode c{g, n};
  if (const FlopFormula formula = flop_formula(name)) return formula(c);
  if (computes_nothing(c, name)) return 0;
  const auto made = known_elements(*c.out());
  const auto read = c.arg(0) ? known_elements(*c.arg(0)) : made;
  return made && read ? std::optional(std::max(*made, *read)) : std::nullopt;
}

}  // namespace

std::optional<double> flops(const Graph& traced) {
  double sum = 0;
  for (const Node& n : traced.nodes) {
    const auto own = node_flops(traced, n);
    if (!own) return std::nullopt;
    sum += *own;
  }
  return sum;
}

}  // namespace flashover::graph
