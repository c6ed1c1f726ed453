// A rule for each of the operators.
#include "graph/passes/row_by_row.h"

#include "graph/passes/linear.h"
#include "graph/rewrite/match.h"
#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

struct RowState {
  const target::Providers& providers;
  int64_t room;  // bytes that are left for packed weights
};

bool is_float_on_cpu(const TensorType& t) {
  return t.device.type == DeviceType::kCPU && (t.dtype == DType::kF32 || t.dtype == DType::kF64 || is_reduced(t.dtype));
}
ValueId in_f32(Rewriter& r, ValueId v) { return is_reduced(r.b.dtype(v)) ? r.b.convert(v, DType::kF32) : v; }

// a [rows, inner] times b [inner, columns], or a batch of them; of f32 or f64.
ValueId rows_times(Rewriter& r, ValueId a, ValueId b, RowState& state) {
  TensorType type = r.b.type(a);
  const TensorType matrix = r.b.type(b);
  type.sizes.back() = matrix.sizes.back();
  type = dense_type(type);
  const bool packs = type.rank() == 2 && type.dtype == DType::kF32 && state.providers.panels && is_kept(r, b) &&
                     all_const(matrix.sizes);
  if (packs && take_room(matrix, state.room))
    return own_linear(r, target::Gemm::kOwnPanels, a, transposed(r, b), std::nullopt, std::move(type));
  return r.b.emit("flashover.row_product.default", {Ref{a}, Ref{b}}, std::move(type));
}

ValueId times_factor(Rewriter& r, ValueId v, const Arg& by) {
  return ops::is_number(by, 1) ? v : r.b.mul(v, r.b.full_like(v, ops::as_double(by)));
}

// beta added + alpha a b. 16-bit floats are rounded behind the product, too: torch makes a linear of several dims from
// addmm or from mm and add, by whether a batch of that size lies dense.
bool product(Rewriter& r, const Node& n, size_t first, Values& results, const void* user) {
  auto& state = *static_cast<RowState*>(const_cast<void*>(user));
  const ValueId a = ops::as_value(n.args[first]), b = ops::as_value(n.args[first + 1]);
  const DType dtype = r.b.dtype(a);
  if (!is_float_on_cpu(r.b.type(a)) || r.b.dtype(b) != dtype) return false;
  if (first > 0 && r.b.dtype(ops::as_value(n.args[0])) != dtype) return false;
  ValueId right = in_f32(r, b);
  const bool vector = r.b.rank(right) == 1;
  if (vector) right = r.b.unsqueeze(right, 1);
  ValueId y = rows_times(r, in_f32(r, a), right, state);
  if (vector) y = r.b.squeeze(y, 1);
  if (first > 0) {
    y = in_f32(r, r.b.convert(times_factor(r, y, n.args[4]), dtype));
    // (0 times what is added is not even looked at.)
    if (!ops::is_number(n.args[3], 0)) y = r.b.add(y, times_factor(r, in_f32(r, ops::as_value(n.args[0])), n.args[3]));
  }
  results = {r.b.convert(y, dtype)};
  return true;
}
template <size_t first>  // of the two matrices
bool product_by_rows(Rewriter& r, const Node& n, Values& results, const void* user) {
  return product(r, n, first, results, user);
}

// In the layout of the result that is replaced.
ValueId lying_as(Rewriter& r, ValueId v, const TensorType& wanted) {
  return in_strides(r, r.b.convert(v, wanted.dtype), wanted);
}

bool convolution_by_image(Rewriter& r, const Node& n, Values& results, const void* /*user*/) {
  TensorType type = r.b.type(n.outs[0]);
  const TensorType wanted = type;
  if (!is_float_on_cpu(type)) return false;
  std::vector<Arg> args = n.args;
  for (Arg& a : args)
    if (auto* ref = std::get_if<Ref>(&a); ref && ref->id != kNoValue) ref->id = in_f32(r, ref->id);
  if (is_reduced(type.dtype)) type.dtype = DType::kF32;
  results = {
      lying_as(r, r.b.emit("flashover.convolution_by_image.default", std::move(args), dense_type(type)), wanted)};
  return true;
}

// (grad, x, weight, bias sizes, stride, padding, dilation, transposed, output padding, groups, which are wanted): the
// gradient of the image; those of weight and bias are sums over the batch.
bool image_gradient_by_image(Rewriter& r, const Node& n, Values& results, const void* /*user*/) {
  if (n.outs[0] == kNoValue) return false;
  TensorType type = r.b.type(n.outs[0]);
  const TensorType wanted = type;
  if (!is_float_on_cpu(type)) return false;
  std::vector<Arg> rest = n.args, args;
  auto mask = std::get<std::vector<bool>>(rest[10]);
  for (size_t i = 0; i < 10; ++i)
    if (i != 3) args.push_back(n.args[i]);
  for (Arg& a : args)
    if (auto* ref = std::get_if<Ref>(&a); ref && ref->id != kNoValue) ref->id = in_f32(r, ref->id);
  if (is_reduced(type.dtype)) type.dtype = DType::kF32;
  results = {kNoValue, kNoValue, kNoValue};
  if (mask[1] || mask[2]) {
    mask[0] = false;
    rest[10] = mask;
    std::vector<TensorType> types;
    for (const ValueId v : n.outs) types.push_back(v == kNoValue ? TensorType{} : r.b.type(v));
    types[0] = TensorType{};
    const std::vector<ValueId> made = r.b.emit_all(n.op->name, std::move(rest), std::move(types));
    for (size_t i = 1; i < 3; ++i)
      if (n.outs[i] != kNoValue) results[i] = made[i];
    std::vector<ValueId>& outs = r.out.nodes.back().outs;
    for (size_t i = 0; i < 3; ++i)
      if (results[i] == kNoValue) outs[i] = kNoValue;
  }
  results[0] = lying_as(
      r, r.b.emit("flashover.convolution_input_gradient_by_image.default", std::move(args), dense_type(type)), wanted);
  return true;
}

template <size_t first>  // of the operands that have a batch
bool attention_by_entry(Rewriter& r, const Node& n, Values& results, const void* /*user*/) {
  if (r.b.type(ops::as_value(n.args[0])).device.type != DeviceType::kCPU) return false;
  std::vector<TensorType> types, wanted;
  for (const ValueId v : n.outs) {
    wanted.push_back(v == kNoValue ? TensorType{} : r.b.type(v));
    types.push_back(v == kNoValue ? TensorType{} : dense_type(wanted.back()));
  }
  const char* const name =
      first > 0 ? "flashover.attention_backward_by_entry.default" : "flashover.attention_by_entry.default";
  results = r.b.emit_all(name, n.args, std::move(types));
  std::vector<ValueId>& outs = r.out.nodes.back().outs;
  for (size_t i = 0; i < n.outs.size(); ++i)
    if (n.outs[i] == kNoValue) outs[i] = results[i] = kNoValue;
  for (size_t i = 0; i < n.outs.size(); ++i)
    if (results[i] != kNoValue) results[i] = lying_as(r, results[i], wanted[i]);
  return true;
}

constexpr const char *kEachRow = "-> each row by itself", *kEachImage = "-> each image by itself",
                     *kEachEntry = "-> each entry of the batch by itself";
constexpr RewriteRule kRowRules[] = {
    {op::mm, kEachRow, product_by_rows<0>},
    {op::bmm, kEachRow, product_by_rows<0>},
    {op::mv, kEachRow, product_by_rows<0>},
    {op::addmm, kEachRow, product_by_rows<1>},
    {op::baddbmm, kEachRow, product_by_rows<1>},
    {op::addmv, kEachRow, product_by_rows<1>},
    {op::convolution, kEachImage, convolution_by_image},
    {op::convolution_backward, kEachImage, image_gradient_by_image},
    {op::_scaled_dot_product_flash_attention_for_cpu, kEachEntry, attention_by_entry<0>},
    {op::_scaled_dot_product_flash_attention_for_cpu_backward, kEachEntry, attention_by_entry<1>},
};

}  // namespace

Graph row_by_row(Graph g, const target::Providers& providers) {
  if (!providers.batch_invariant) return g;
  RowState state{providers, providers.pack_budget};
  return rewrite(std::move(g), kRowRules, &state);
}

}  // namespace flashover::graph
