// Rewrite rules from mm, addmm and bmm to the operators of the libraries, packing included.
#include "graph/passes/linear.h"

#include "graph/passes/low_precision.h"
#include "graph/rewrite/match.h"
#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {

using target::Gemm;
namespace {

struct PackingState {
  target::Providers providers;
  int64_t packed_bytes = 0;
};
constexpr const char* kProduct = "flashover.product.default";

ValueId own_product(Rewriter& r, ValueId a, ValueId b, std::optional<ValueId> bias, bool vectors, TensorType type) {
  return r.b.emit(kProduct,
                  {Ref{a}, Ref{b}, bias ? Arg(Ref{*bias}) : Arg(), std::string("none"), /*wide=*/false, vectors},
                  std::move(type));
}

ValueId onednn_linear(Rewriter& r, ValueId x, ValueId weight, std::optional<ValueId> bias,
                      const FusedActivation& activation, TensorType type) {
  return r.b.emit("mkldnn._linear_pointwise.default",
                  {Ref{x}, Ref{weight}, dense_value(r, bias), std::string(activation.attr ? activation.attr : "none"),
                   std::vector<double>{}, activation.algorithm},
                  std::move(type));
}

// (A transposed gradient has others.)
ValueId with_dense_rows(Rewriter& r, ValueId x) {
  const TensorType lies = r.b.type(x);
  return lies.strides[1].is_const(1) ? x : in_strides(r, x, dense_type(lies));
}

ValueId packed_linear(Rewriter& r, ValueId x, ValueId packed, std::optional<ValueId> bias, int64_t columns,
                      std::string activation, TensorType type) {
  return r.b.emit(
      "flashover.packed_linear.default",
      {Ref{with_dense_rows(r, x)}, Ref{packed}, dense_value(r, bias), sym::Expr(columns), std::move(activation)},
      std::move(type));
}

ValueId panel_linear(Rewriter& r, ValueId x, ValueId packed, std::optional<ValueId> bias, int64_t columns,
                     std::string activation, TensorType type) {
  return r.b.emit(
      "flashover.panel_linear.default",
      {Ref{with_dense_rows(r, x)}, Ref{packed}, dense_value(r, bias), Arg(), sym::Expr(columns), std::move(activation)},
      std::move(type));
}

// x [rows, inner] times matrix [inner, columns] (+ bias [columns])
bool use_library(Rewriter& r, ValueId x, ValueId matrix, std::optional<ValueId> bias, Values& results,
                 PackingState& state) {
  const TensorType a = r.b.type(x), m = r.b.type(matrix);
  if (a.rank() != 2 || m.rank() != 2 || a.device.type != DeviceType::kCPU || a.dtype != m.dtype) return false;
  if (!a.sizes[1].is_const() || !all_const(m.sizes) || is_low_precision(r, x, matrix, state.providers)) return false;
  if (bias) {
    const TensorType& b = r.b.type(*bias);
    if (b.rank() != 1 || !sym::known_eq(b.sizes[0], m.sizes[1]) || b.dtype != a.dtype) return false;
  }
  // Where the rows are a symbol the choice is for a typical number: all of ours take any, as do the libraries' of 16
  // bits.
  const bool known = a.sizes[0].is_const();
  const int64_t rows = a.sizes[0].hint(), inner = m.sizes[0].value(), columns = m.sizes[1].value();
  const int64_t bytes =
      inner * columns * (a.dtype == DType::kF32 ? 6 : info(a.dtype).bytes);  // the most that any takes
  const bool can_pack = is_kept(r, matrix) && state.packed_bytes + bytes <= state.providers.pack_budget;
  const bool bf16x3 = can_pack && suits_bf16x3(state.providers, a.dtype, rows, inner, columns);
  const target::ProductSize size{rows, inner, columns};
  const bool dense = m.strides[0].is_const(1);
  // (A packed weight is quick for any number of rows, so it is kept for those that are a symbol.)
  const bool unpacked = known ? suits_unpacked(state.providers, a.dtype, size, dense, can_pack)
                              : suits_unpacked_rows(state.providers, a.dtype, inner, columns, dense);
  const bool own = unpacked || (!can_pack && suits_product(state.providers, a.dtype, size));
  const Gemm gemm = bf16x3 ? Gemm::kOwnPacked
                    : own  ? Gemm::kOwn
                           : choose_gemm(state.providers, a.dtype, rows, inner, columns, can_pack);
  if (gemm == Gemm::kAten ||
      (!known && a.dtype == DType::kF32 && gemm != Gemm::kOwn && gemm != Gemm::kOwnPacked && gemm != Gemm::kOwnPanels))
    return false;
  // Of 16 bits, with operands that lie otherwise, as in a linear's backward, ATen's product is 1.2-2x faster: the
  // linear operator copies them.
  const auto lies = [](const TensorType& t, int64_t outer, int64_t inner) {
    return t.strides.size() == 2 && t.strides[0].is_const(outer) && t.strides[1].is_const(inner);
  };
  if (gemm == Gemm::kOneDnn && a.dtype != DType::kF32 && (!lies(a, inner, 1) || !lies(m, 1, inner))) return false;
  TensorType type = a;
  type.sizes = {a.sizes[0], m.sizes[1]};
  type = dense_type(type);
  if (gemm == Gemm::kOwn) {
    results = {own_product(r, x, matrix, bias, target::multiplies_by_vectors(state.providers, a.dtype), type)};
    return true;
  }
  const ValueId weight = transposed(r, matrix);
  const TensorType w = r.b.type(weight);
  if (gemm == Gemm::kMklPacked) {
    state.packed_bytes += bytes;
    const ValueId packed =
        r.b.emit("mkl._mkl_reorder_linear_weight.default", {Ref{weight}, sym::Expr(rows)}, opaque_type(w));
    results = {r.b.emit("mkl._mkl_linear.default",
                        {Ref{x}, Ref{packed}, Ref{weight}, dense_value(r, bias), sym::Expr(rows)}, type)};
    return true;
  }
  if (gemm == Gemm::kOwnPacked || gemm == Gemm::kOwnPanels) {
    state.packed_bytes += bytes;
    results = {own_linear(r, gemm, x, weight, bias, type)};
    return true;
  }
  ValueId packed = weight;
  if (gemm == Gemm::kOneDnnPacked) {
    state.packed_bytes += bytes;
    packed = r.b.emit("mkldnn._reorder_linear_weight.default", {Ref{weight}, known ? Arg(sym::Expr(rows)) : Arg()},
                      opaque_type(w));
  }
  results = {onednn_linear(r, x, packed, bias, {}, type)};
  return true;
}

bool from_mm(Rewriter& r, const Node& n, Values& results, const void* user) {
  auto& state = *static_cast<PackingState*>(const_cast<void*>(user));
  return use_library(r, ops::as_value(n.args[0]), ops::as_value(n.args[1]), std::nullopt, results, state);
}
bool from_addmm(Rewriter& r, const Node& n, Values& results, const void* user) {
  auto& state = *static_cast<PackingState*>(const_cast<void*>(user));
  if (!ops::is_number(n.args[3], 1) || !ops::is_number(n.args[4], 1)) return false;
  return use_library(r, ops::as_value(n.args[1]), ops::as_value(n.args[2]), ops::as_value(n.args[0]), results, state);
}

// x [batch, rows, inner] times the same matrix for the whole batch
bool from_bmm(Rewriter& r, const Node& n, Values& results, const void* user) {
  auto& state = *static_cast<PackingState*>(const_cast<void*>(user));
  const Node* repeated = r.def(ops::as_value(n.args[1]), Prim::broadcast);
  if (!repeated || ops::as_ints(repeated->args[2]) != std::vector<int64_t>{1, 2}) return false;
  const ValueId matrix = ops::as_value(repeated->args[0]), x = ops::as_value(n.args[0]);
  const TensorType type = r.b.type(x), m = r.b.type(matrix), out = r.b.type(n.outs[0]);
  if (!type.sizes[2].is_const() || m.rank() != 2 ||
      !sym::known_eq(m.sizes[0], out.sizes.size() == 3 ? type.sizes[2] : 0) ||
      !sym::known_eq(m.sizes[1], out.sizes.back()) || !is_kept(r, matrix))
    return false;
  const ValueId rows = r.b.reshape(x, {type.sizes[0] * type.sizes[1], type.sizes[2]});
  if (!use_library(r, rows, matrix, std::nullopt, results, state)) return false;
  results = {r.b.reshape(results[0], out.sizes)};
  return true;
}

// The value that nothing else reads behind views of it, which are put into `views`; the last one first.
ValueId behind_views(Rewriter& r, ValueId v, std::vector<Node>& views) {
  for (;;) {
    const Node* view = r.def(v);
    if (!view || r.uses(v) != 1) return kNoValue;
    if (view->op->prim == Prim::reshape || view->op->prim == Prim::permute)
      views.push_back(*view);
    else if (view->op->prim != Prim::copy)
      return v;
    v = ops::as_value(view->args[0]);
  }
}
ValueId with_views(Rewriter& r, ValueId v, const std::vector<Node>& views) {
  for (size_t i = views.size(); i-- > 0;)
    v = views[i].op->prim == Prim::permute ? r.b.permute(v, ops::as_ints(views[i].args[1]))
                                           : r.b.reshape(v, r.b.sizes(views[i].outs[0]));
  return v;
}

// to_f32(views(product)): the gradient of a weight that autocast rounded. The product's sums are f32.
bool take_widening(Rewriter& r, const Node& n, Values& results, const void*) {
  if (r.b.type(n.outs[0]).dtype != DType::kF32 || r.b.type(n.outs[0]).device.type != DeviceType::kCPU) return false;
  std::vector<Node> views;
  const ValueId v = behind_views(r, ops::as_value(n.args[0]), views);
  const Node* product = v == kNoValue ? nullptr : r.def(v, kProduct);
  if (!product || r.b.type(v).dtype != DType::kBF16 || !is_none(product->args[2]) ||
      std::get<std::string>(product->args[3]) != "none")
    return false;
  TensorType type = r.b.type(v);
  type.dtype = DType::kF32;
  const Node from = *product;
  results = {with_views(
      r,
      r.b.emit(kProduct, {from.args[0], from.args[1], from.args[2], from.args[3], true, from.args[5]}, std::move(type)),
      views)};
  return true;
}

// activation(views(linear)): the linear computes it.
bool take_activation_of_linear(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto& state = *static_cast<const PackingState*>(user);
  if (state.providers.strict_numerics) return false;
  std::vector<Node> views;
  const ValueId v = behind_views(r, ops::as_value(n.args[0]), views);
  if (v == kNoValue) return false;
  const Node linear = *r.def(v);
  const auto plain = [&](size_t i) { return std::get<std::string>(linear.args[i]) == "none"; };
  ValueId fused = kNoValue;
  if (linear.op->name == "flashover.packed_linear.default" && plain(4)) {
    const auto activation = own_activation(n);
    if (!activation) return false;
    fused =
        packed_linear(r, ops::as_value(linear.args[0]), ops::as_value(linear.args[1]),
                      ops::as_optional_value(linear.args[2]), ops::as_int(linear.args[3]), *activation, r.b.type(v));
  } else if (linear.op->name == "flashover.panel_linear.default" && plain(5)) {
    const auto activation = own_activation(n);
    if (!activation) return false;
    fused = panel_linear(r, ops::as_value(linear.args[0]), ops::as_value(linear.args[1]),
                         ops::as_optional_value(linear.args[2]), ops::as_int(linear.args[4]), *activation, r.b.type(v));
  } else if (linear.op->name == kProduct && plain(3)) {
    const auto activation = own_activation(n);
    if (!activation) return false;
    fused = r.b.emit(kProduct, {linear.args[0], linear.args[1], linear.args[2], *activation, false, linear.args[5]},
                     r.b.type(v));
  } else if (linear.op->name == "mkldnn._linear_pointwise.default" && plain(3)) {
    const auto activation = fused_activation(n);
    if (!activation) return false;
    fused = onednn_linear(r, ops::as_value(linear.args[0]), ops::as_value(linear.args[1]),
                          ops::as_optional_value(linear.args[2]), *activation, r.b.type(v));
  } else {
    return false;
  }
  r.out.nodes.back().location = linear.location;  // most of the time is the linear's
  results = {with_views(r, fused, views)};
  return true;
}

constexpr RewriteRule kLibraryRules[] = {
    {op::mm, "x @ w -> the fastest library's linear", from_mm},
    {op::addmm, "b + x @ w -> the fastest library's linear", from_addmm},
    {op::bmm, "x @ one w -> a linear of all rows", from_bmm},
    {op::_to_copy, "f32(product) -> product with an f32 result", take_widening},
    {op::gelu, "gelu(linear) -> linear with gelu", take_activation_of_linear},
    {op::silu, "silu(linear) -> linear with swish", take_activation_of_linear},
    {op::relu, "relu(linear)", take_activation_of_linear},
    {op::hardswish, "hardswish(linear)", take_activation_of_linear},
    {op::tanh, "tanh(linear)", take_activation_of_linear},
    {op::sigmoid, "sigmoid(linear)", take_activation_of_linear},
};

}  // namespace

ValueId own_linear(Rewriter& r, Gemm gemm, ValueId x, ValueId weight, std::optional<ValueId> bias, TensorType type) {
  if (gemm == Gemm::kOwn)  // what is not packed beforehand is for the vectors (suits_unpacked)
    return own_product(r, x, r.b.permute(weight, {1, 0}), bias, /*vectors=*/true, std::move(type));
  const bool panels = gemm == Gemm::kOwnPanels;
  const TensorType w = r.b.type(weight);
  const ValueId packed = r.b.emit(panels ? "flashover.pack_panels.default" : "flashover.pack_linear.default",
                                  {Ref{weight}}, opaque_type(w));
  return (panels ? panel_linear : packed_linear)(r, x, packed, bias, w.sizes[0].value(), "none", std::move(type));
}

// The bf16x3 split takes half as much memory again as f32, so it is not for the few rows whose time is reading the
// weight, nor where much is padded to blocks of 32.
bool suits_bf16x3(const target::Providers& providers, DType dtype, int64_t rows, int64_t inner, int64_t columns) {
  if (dtype != DType::kF32 || !providers.split_f32 || providers.strict_numerics || rows < 32) return false;
  const auto work = [&](int64_t k, int64_t n) { return 2.0 * static_cast<double>(rows) * static_cast<double>(k * n); };
  const auto padded = [](int64_t n) { return (n + 31) / 32 * 32; };
  return work(inner, columns) >= 2e6 && work(padded(inner), padded(columns)) < 1.4 * work(inner, columns);
}

Graph linear(Graph g, const target::Providers& providers) {
  PackingState state{providers};
  return rewrite(std::move(g), kLibraryRules, &state);
}

}  // namespace flashover::graph
