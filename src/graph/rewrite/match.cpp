// Steps backwards through copies, casts and transposes, and types that rules need.
#include "graph/rewrite/match.h"

#include <algorithm>

#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {

ValueId skip_copies(Rewriter& r, ValueId v) {
  while (const Node* n = r.def(v, Prim::copy)) v = ops::as_value(n->args[0]);
  return v;
}

ValueId skip_narrowing(Rewriter& r, ValueId v) {
  const Node* n = r.def(v);
  if (!n || (n->op->prim != Prim::convert && n->op->name != op::_to_copy)) return v;
  const ValueId x = ops::as_value(n->args[0]);
  const TensorType &from = r.b.type(x), &to = r.b.type(v);
  return from.dtype == DType::kF32 && is_reduced(to.dtype) && from.device == to.device ? x : v;
}

ValueId transposed(Rewriter& r, ValueId v) {
  if (const Node* n = r.def(v, Prim::permute); n && r.b.rank(v) == 2) return ops::as_value(n->args[0]);
  return r.b.permute(v, {1, 0});
}

std::optional<double> known_number(Rewriter& r, const Arg& a) {
  const auto real = [](const Arg& x) -> std::optional<double> {
    if (!ops::is_scalar(x) || std::holds_alternative<std::complex<double>>(x)) return std::nullopt;
    const auto* e = std::get_if<sym::Expr>(&x);
    return e && !e->is_const() ? std::nullopt : std::optional(ops::as_double(x));
  };
  const Node* full = std::holds_alternative<Ref>(a) ? r.def(ops::as_value(a), Prim::full) : nullptr;
  return full ? r.b.rank(full->outs[0]) == 0 ? real(full->args[1]) : std::nullopt : real(a);
}

bool all_const(const Sizes& sizes) {
  for (sym::Expr n : sizes)
    if (!n.is_const() || n.value() <= 0) return false;
  return true;
}

TensorType opaque_type(TensorType t) {
  t.strides.clear();
  t.offset = 0;
  t.opaque = true;
  return t;
}
bool moves_elements_only(const Node& n) {
  return n.op->prim == Prim::permute || n.op->prim == Prim::reshape || n.op->prim == Prim::broadcast;
}
bool take_room(const TensorType& weight, int64_t& room) {
  if (weight.device.type != DeviceType::kCPU) return true;
  const sym::Expr elements = weight.numel();
  if (!elements.is_const()) return false;
  const int64_t bytes = elements.value() * info(weight.dtype).bytes;
  if (bytes > room) return false;
  room -= bytes;
  return true;
}
TensorType dense_type(TensorType t) {
  t.strides = contiguous_strides(t.sizes);
  t.offset = 0;
  return t;
}

Sizes channels_last_strides(const Sizes& sizes) {
  Sizes strides(sizes.size());
  sym::Expr stride = 1;
  auto take = [&](size_t d) {
    strides[d] = stride;
    stride = stride * sizes[d];
  };
  take(1);
  for (size_t d = sizes.size(); d-- > 2;) take(d);
  take(0);
  return strides;
}
TensorType channels_last(TensorType t) {
  t.strides = channels_last_strides(t.sizes);
  t.offset = 0;
  return t;
}

ValueId in_strides(Rewriter& r, ValueId v, const TensorType& expected) {
  return same_strides(r.b.type(v), expected) ? v : r.b.emit(Prim::copy, {Ref{v}}, expected);
}

ValueId dense_value(Rewriter& r, ValueId v) { return in_strides(r, v, dense_type(r.b.type(v))); }
Arg dense_value(Rewriter& r, std::optional<ValueId> v) { return v ? Arg(Ref{dense_value(r, *v)}) : Arg(); }

bool all_are(const Arg& list, int64_t n) {
  return std::ranges::all_of(ops::as_ints(list), [&](int64_t i) { return i == n; });
}

ValueId bias_gradient(Rewriter& r, ValueId grad, DType dtype) {
  std::vector<int64_t> over;
  for (size_t d = 0; d < r.b.rank(grad); ++d)
    if (d != 1) over.push_back(static_cast<int64_t>(d));
  const DType own = r.b.dtype(grad);
  return r.b.convert(r.b.sum(r.b.convert(grad, is_reduced(own) ? DType::kF32 : own), over), dtype);
}

std::optional<FusedActivation> fused_activation(const Node& n) {
  struct Row {
    std::string_view op;
    const char* attr;
  };
  constexpr Row kRows[] = {
      {op::silu, "swish"}, {op::hardswish, "hardswish"}, {op::sigmoid, "sigmoid"}, {op::tanh, "tanh"}};
  if (n.op->name == op::gelu) {
    const auto* approximate = std::get_if<std::string>(&n.args[1]);
    return FusedActivation{"gelu", approximate ? *approximate : "none"};
  }
  for (const Row& row : kRows)
    if (n.op->name == row.op) return FusedActivation{row.attr, ""};
  return std::nullopt;
}

std::optional<std::string> own_activation(const Node& n) {
  if (n.op->name == op::relu) return "relu";
  if (n.op->name == op::silu) return "silu";
  if (n.op->name == op::sigmoid) return "sigmoid";
  if (n.op->name == op::hardswish) return "hardswish";
  if (n.op->name != op::gelu) return std::nullopt;
  const auto* approximate = std::get_if<std::string>(&n.args[1]);
  return approximate && *approximate == "tanh" ? "gelu_tanh" : "gelu";
}

}  // namespace flashover::graph
