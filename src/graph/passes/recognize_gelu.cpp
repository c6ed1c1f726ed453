// Recognises both formulas backwards from their last product.
#include "graph/passes/recognize_gelu.h"

#include <cmath>

#include "graph/rewrite/match.h"
#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

// Constants as people write them: 0.7978845608 and math.sqrt(2 / math.pi) are the same.
bool near(std::optional<double> number, double expected) {
  return number && std::abs(*number - expected) <= 1e-7 * std::abs(expected);
}

// The other operand of op(x, number) or op(number, x); `alone`: nothing else reads the result.
std::optional<ValueId> operand_beside(Rewriter& r, ValueId v, std::string_view op, double expected) {
  const Node* n = r.def(v, op);
  if (!n || r.uses(v) != 1 || (n->args.size() > 2 && !ops::is_number(n->args[2], 1))) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    if (!std::holds_alternative<Ref>(n->args[1 - i]) || !near(known_number(r, n->args[i]), expected)) continue;
    const ValueId x = ops::as_value(n->args[1 - i]);
    if (same_sizes(r.b.type(x).sizes, r.b.type(v).sizes) && r.b.dtype(x) == r.b.dtype(v)) return x;
  }
  return std::nullopt;
}

std::optional<ValueId> only_operand(Rewriter& r, ValueId v, std::string_view op) {
  const Node* n = r.def(v, op);
  return n && r.uses(v) == 1 ? std::optional(ops::as_value(n->args[0])) : std::nullopt;
}

bool is_cube(Rewriter& r, ValueId v, ValueId x) {
  const Node* n = r.def(v, op::pow_Tensor_Scalar);
  return n && r.uses(v) == 1 && ops::as_value(n->args[0]) == x && near(known_number(r, n->args[1]), 3);
}

// sqrt(2 / pi) (x + 0.044715 x^3)
bool is_tanh_argument(Rewriter& r, ValueId v, ValueId x) {
  const auto sum = operand_beside(r, v, op::mul_Tensor, std::sqrt(2 / M_PI));
  const Node* add = sum ? r.def(*sum, op::add_Tensor) : nullptr;
  if (!add || r.uses(*sum) != 1 || !ops::is_number(add->args[2], 1)) return false;
  for (size_t i = 0; i < 2; ++i) {
    if (ops::as_value(add->args[i]) != x) continue;
    const auto cube = operand_beside(r, ops::as_value(add->args[1 - i]), op::mul_Tensor, 0.044715);
    if (cube && is_cube(r, *cube, x)) return true;
  }
  return false;
}

// x / sqrt(2), or x times its reciprocal
bool is_erf_argument(Rewriter& r, ValueId v, ValueId x) {
  if (const auto product = operand_beside(r, v, op::mul_Tensor, std::sqrt(0.5))) return *product == x;
  const Node* n = r.def(v, op::div_Tensor);
  return n && r.uses(v) == 1 && ops::as_value(n->args[0]) == x && near(known_number(r, n->args[1]), std::sqrt(2));
}

// (0.5 x) * (1 + f)
bool gelu_from_product(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto& providers = *static_cast<const target::Providers*>(user);
  const TensorType type = r.b.type(n.outs[0]);
  if (type.dtype != DType::kF32 && (!is_reduced(type.dtype) || providers.strict_numerics)) return false;
  for (size_t i = 0; i < 2; ++i) {
    if (!std::holds_alternative<Ref>(n.args[i]) || !std::holds_alternative<Ref>(n.args[1 - i])) return false;
    const auto x = operand_beside(r, ops::as_value(n.args[i]), op::mul_Tensor, 0.5);
    const auto f = operand_beside(r, ops::as_value(n.args[1 - i]), op::add_Tensor, 1);
    if (!x || !f || r.b.dtype(*x) != type.dtype || !same_sizes(r.b.type(*x).sizes, type.sizes)) continue;
    const char* approximate = nullptr;
    if (const auto argument = only_operand(r, *f, op::tanh); argument && is_tanh_argument(r, *argument, *x))
      approximate = "tanh";
    if (const auto argument = only_operand(r, *f, op::erf); argument && is_erf_argument(r, *argument, *x))
      approximate = "none";
    if (!approximate) continue;
    results = {r.b.emit(op::gelu, {Ref{*x}, std::string(approximate)}, type)};
    return true;
  }
  return false;
}

constexpr RewriteRule kGeluRules[] = {
    {op::mul_Tensor, "0.5 x (1 + tanh(...)), 0.5 x (1 + erf(...)) -> gelu(x)", gelu_from_product}};

}  // namespace

Graph recognize_gelu(Graph g, const target::Providers& providers) {
  return rewrite(std::move(g), kGeluRules, &providers);
}

}  // namespace flashover::graph
