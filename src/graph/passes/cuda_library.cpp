// Rewrite rules for layouts, biases and epilogues of cuBLAS and cuDNN.
#include "graph/passes/cuda_library.h"

#include <algorithm>

#include "graph/analysis/devices.h"
#include "graph/rewrite/convolution.h"
#include "graph/rewrite/match.h"
#include "graph/rewrite/rewriter.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

struct LibraryContext {
  target::Providers providers;
  bool channels_last = true;
  std::vector<bool> only_leaves;  // results of the program that nothing else reads
};

bool on_cuda(const TensorType& t) { return t.device.type == DeviceType::kCUDA; }

// Groups of a width for which cuDNN has no kernels of its own channels last: there they take twice as long. (Measured
// on an H200: 4, 8, 16 and 32 channels take half as long as with channels first, 24 and 48 twice as long.)
bool is_oddly_grouped(const Graph& g, const Node& n) {
  const TensorType& w = g.type(ops::as_value(n.args[kWeight]));
  if (ops::as_int(n.args[kGroups]) == 1) return false;
  if (w.rank() < 2 || !w.sizes[1].is_const()) return true;
  const int64_t width = w.sizes[1].value();
  return width != 1 && (width < 4 || (width & (width - 1)) != 0);
}

bool run_channels_last(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto& state = *static_cast<const LibraryContext*>(user);
  const ValueId x = skip_copies(r, ops::as_value(n.args[kInput])), weight = ops::as_value(n.args[kWeight]);
  const TensorType input = r.b.type(x), w = r.b.type(weight), out = r.b.type(n.outs[0]);
  if (!state.channels_last || !on_cuda(input) || !is_reduced(input.dtype) || input.dtype != w.dtype) return false;
  if (ops::as_bool(n.args[kTransposed])) return false;
  if (input.rank() != 4 || w.rank() != 4 || !input.sizes[1].is_const() || !all_const(w.sizes)) return false;
  const auto bias = ops::as_optional_value(n.args[kBias]);
  if (bias && r.b.dtype(*bias) != input.dtype) return false;
  const ValueId x_last = in_strides(r, x, channels_last(input));
  const int64_t groups = ops::as_int(n.args[kGroups]);
  const bool point = w.sizes[2].is_const(1) && w.sizes[3].is_const(1) && groups == 1 && all_are(n.args[kStride], 1) &&
                     all_are(n.args[kPadding], 0);
  if (point) {  // channels last, it is a product: cheaper to call, and it takes a bias
    const sym::Expr rows = input.sizes[0] * input.sizes[2] * input.sizes[3], from = w.sizes[1], to = w.sizes[0];
    const ValueId left = r.b.reshape(r.b.permute(x_last, {0, 2, 3, 1}), {rows, from});
    const ValueId right = r.b.permute(r.b.reshape(weight, {to, from}), {1, 0});
    TensorType type = dense_type(out);
    type.sizes = {rows, to};
    type.strides = contiguous_strides(type.sizes);
    const ValueId y = bias ? r.b.emit(op::addmm, {Ref{*bias}, Ref{left}, Ref{right}, sym::Expr(1), sym::Expr(1)}, type)
                           : r.b.emit(op::mm, {Ref{left}, Ref{right}}, type);
    results = {r.b.permute(r.b.reshape(y, {input.sizes[0], input.sizes[2], input.sizes[3], to}), {0, 3, 1, 2})};
    return true;
  }
  std::vector<Arg> args = n.args;
  args[kInput] = Ref{x_last};
  args[kWeight] = Ref{in_strides(r, weight, channels_last(w))};
  results = {r.b.emit(op::convolution, std::move(args), channels_last(out))};
  return true;
}

// aten.convolution_backward(grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
// groups, mask): as the forward, and the bias is a sum like any other.
bool convolution_backward(Rewriter& r, const Node& n, Values& results, const void* user) {
  const auto& state = *static_cast<const LibraryContext*>(user);
  const auto* mask = std::get_if<std::vector<bool>>(&n.args[10]);
  const ValueId g = skip_copies(r, ops::as_value(n.args[0])), x = skip_copies(r, ops::as_value(n.args[1])),
                weight = ops::as_value(n.args[2]);
  const TensorType out = r.b.type(g), input = r.b.type(x), w = r.b.type(weight);
  if (!on_cuda(input) || !mask || mask->size() != 3 || input.rank() < 3 || !input.sizes[1].is_const() ||
      !all_const(w.sizes))
    return false;
  const bool last = state.channels_last && is_reduced(input.dtype) && input.dtype == w.dtype &&
                    input.dtype == out.dtype && input.rank() == 4 && w.rank() == 4 && !ops::as_bool(n.args[7]);
  const bool bias = (*mask)[2] && n.outs[2] != kNoValue && is_floating(out.dtype) && out.rank() > 2;
  if (!last && !bias) return false;
  std::vector<Arg> args = n.args;
  TensorType input_type = r.b.type(ops::as_value(n.args[1])), weight_type = w;
  if (n.outs[0] != kNoValue) input_type = r.b.type(n.outs[0]);
  if (n.outs[1] != kNoValue) weight_type = r.b.type(n.outs[1]);
  if (last) {
    input_type = channels_last(input);
    weight_type = channels_last(w);
    args[0] = Ref{in_strides(r, g, channels_last(out))};
    args[1] = Ref{in_strides(r, x, input_type)};
    args[2] = Ref{in_strides(r, weight, weight_type)};
  }
  results.assign(3, kNoValue);
  if (bias) {
    results[2] = bias_gradient(r, g, r.b.dtype(n.outs[2]));
    args[3] = Arg{};
    args[10] = std::vector<bool>{(*mask)[0], (*mask)[1], false};
  }
  if (n.outs[0] == kNoValue && n.outs[1] == kNoValue && bias) return true;
  const TensorType bias_type = (*mask)[2] && !bias && n.outs[2] != kNoValue ? r.b.type(n.outs[2]) : TensorType{};
  const auto made = r.b.emit_all(op::convolution_backward, std::move(args), {input_type, weight_type, bias_type});
  for (size_t i = 0; i < 3; ++i) {
    if (results[i] != kNoValue) r.out.nodes.back().outs[i] = kNoValue;
    if (n.outs[i] == kNoValue) r.out.nodes.back().outs[i] = kNoValue;
    if (n.outs[i] != kNoValue && results[i] == kNoValue) results[i] = made[i];
  }
  return true;
}

// A bias of its own kernel reads and writes the result again: alone it is left to the loops, which fuse it with what
// follows.
bool split_bias(Rewriter& r, const Node& n, Values& results, const void*) {
  const TensorType out = r.b.type(n.outs[0]);
  const auto bias = ops::as_optional_value(n.args[kBias]);
  if (!on_cuda(out) || !bias || out.rank() < 3 || r.b.dtype(*bias) != out.dtype || !out.sizes[1].is_const())
    return false;
  std::vector<Arg> args = n.args;
  args[kBias] = {};
  const ValueId y = r.b.emit(op::convolution, std::move(args), out);
  Sizes across(out.rank(), 1);
  across[1] = out.sizes[1];
  const DType wide = is_reduced(out.dtype) ? DType::kF32 : out.dtype;
  const ValueId b = r.b.expand(r.b.reshape(r.b.convert(*bias, wide), across), out.sizes);
  results = {r.b.convert(r.b.add(r.b.convert(y, wide), b), out.dtype)};
  return true;
}

// What cuDNN's fused calls are known to take.
bool fusable(Rewriter& r, const Node& conv) {
  const TensorType& x = r.b.type(ops::as_value(conv.args[kInput]));
  const TensorType& w = r.b.type(ops::as_value(conv.args[kWeight]));
  const auto eights = [](sym::Expr e) { return e.is_const() && e.value() % 8 == 0; };
  return on_cuda(x) && is_reduced(x.dtype) && x.rank() == 4 && !ops::as_bool(conv.args[kTransposed]) &&
         ops::as_optional_value(conv.args[kBias]) && ops::as_int(conv.args[kGroups]) == 1 && eights(w.sizes[0]) &&
         eights(w.sizes[1]) && same_strides(x, channels_last(x));
}

// A convolution behind copies that only this use reads.
const Node* sole_convolution(Rewriter& r, ValueId v) {
  if (r.uses(v) != 1) return nullptr;
  v = skip_copies(r, v);
  const Node* conv = r.def(v, op::convolution);
  return conv && r.uses(v) == 1 && fusable(r, *conv) ? conv : nullptr;
}

bool relu_of_convolution(Rewriter& r, const Node& n, Values& results, const void*) {
  const Node* found = sole_convolution(r, ops::as_value(n.args[0]));
  if (!found) return false;
  const Node conv = *found;
  results = {r.b.emit(op::cudnn_convolution_relu,
                      {conv.args[kInput], conv.args[kWeight], conv.args[kBias], conv.args[kStride], conv.args[kPadding],
                       conv.args[kDilation], conv.args[kGroups]},
                      r.b.type(conv.outs[0]))};
  return true;
}

bool relu_of_sum(Rewriter& r, const Node& n, Values& results, const void*) {
  const ValueId top = ops::as_value(n.args[0]);
  if (r.uses(top) != 1) return false;
  const Node* found = r.def(skip_copies(r, top), op::add_Tensor);
  if (!found || r.uses(found->outs[0]) != 1 || !ops::is_number(found->args[2], 1)) return false;
  const Node sum = *found;
  for (size_t side : {size_t{0}, size_t{1}}) {
    const ValueId other = skip_copies(r, ops::as_value(sum.args[1 - side]));
    const Node* conv_found = sole_convolution(r, ops::as_value(sum.args[side]));
    if (!conv_found) continue;
    const Node conv = *conv_found;
    const TensorType type = r.b.type(conv.outs[0]), z = r.b.type(other);
    if (z.dtype != type.dtype || !same_sizes(z.sizes, type.sizes) || z.device != type.device) continue;
    const ValueId z_last = in_strides(r, other, channels_last(z));
    results = {r.b.emit(op::cudnn_convolution_add_relu,
                        {conv.args[kInput], conv.args[kWeight], Ref{z_last}, 1.0, conv.args[kBias], conv.args[kStride],
                         conv.args[kPadding], conv.args[kDilation], conv.args[kGroups]},
                        type)};
    return true;
  }
  return false;
}

// relu(view(b + x @ w)): one call, the views behind it.
bool relu_of_product(Rewriter& r, const Node& n, Values& results, const void*) {
  std::vector<Node> views;
  ValueId v = ops::as_value(n.args[0]);
  for (;;) {
    const Node* d = r.def(v);
    if (!d || r.uses(v) != 1) return false;
    const bool view = d->op->prim == Prim::reshape || d->op->prim == Prim::permute || d->op->prim == Prim::copy;
    if (!view) break;
    views.push_back(*d);
    v = ops::as_value(d->args[0]);
  }
  const Node* found = r.def(v, op::addmm);
  if (!found || !on_cuda(r.b.type(v)) || !is_reduced(r.b.dtype(v))) return false;
  const Node product = *found;
  const TensorType bias = r.b.type(ops::as_value(product.args[0]));
  if (bias.rank() != 1 || bias.dtype != r.b.dtype(v) || !ops::is_number(product.args[3], 1) ||
      !ops::is_number(product.args[4], 1))
    return false;
  ValueId y =
      r.b.emit(op::_addmm_activation,
               {product.args[0], product.args[1], product.args[2], sym::Expr(1), sym::Expr(1), false}, r.b.type(v));
  for (size_t i = views.size(); i-- > 0;) {
    std::vector<Arg> args = views[i].args;
    args[0] = Ref{y};
    y = r.b.emit(views[i].op->name, std::move(args), r.b.type(views[i].outs[0]));
  }
  results = {y};
  return true;
}

// The dim along which a matrix lies in memory, -1 if neither.
int inner_dim(const TensorType& t) { return t.strides[1].is_const(1) ? 1 : t.strides[0].is_const(1) ? 0 : -1; }

// So many zeros behind the rows and columns, in the order that the matrix lies in memory.
ValueId padded(Rewriter& r, ValueId v, int64_t rows, int64_t columns) {
  if (rows == 0 && columns == 0) return v;
  if (inner_dim(r.b.type(v)) == 0) return r.b.permute(r.b.pad(transposed(r, v), {0, 0}, {columns, rows}, 0.0), {1, 0});
  return r.b.pad(v, {0, 0}, {rows, columns}, 0.0);
}

// a [m, k] @ b [k, n]: with a dim along memory that is no multiple of 8 (vocabularies), half-precision products are 3
// to 8 times slower than padded ones. A padded copy of what is not frozen is one more pass over it: worth it where the
// product is not.
bool pad_product(Rewriter& r, const Node& node, ValueId a, ValueId b, std::optional<ValueId> bias, Values& results) {
  constexpr int64_t kMultiple = 8, kWorthOdd = 512, kWorthInner = 256, kWorthRows = 64, kWorthOther = 256;
  const TensorType x = r.b.type(a), y = r.b.type(b);
  if (!on_cuda(x) || !is_reduced(x.dtype) || x.rank() != 2 || y.rank() != 2 || !x.sizes[1].is_const() ||
      !all_const(y.sizes))
    return false;
  if (bias && r.b.rank(*bias) != 1) return false;
  // Rows that are a symbol are taken for many: few lose nothing that shows.
  constexpr int64_t kMany = 4096;
  const bool known = x.sizes[0].is_const();
  const int64_t m = known ? x.sizes[0].value() : kMany, k = x.sizes[1].value(), n = y.sizes[1].value();
  const auto more = [&](int64_t size, int64_t worth) {
    return size >= worth ? (kMultiple - size % kMultiple) % kMultiple : int64_t{0};
  };
  const int64_t rows = inner_dim(x) == 0 ? more(m, kWorthOdd) : 0, columns = more(n, kWorthOdd);
  const int64_t inner = inner_dim(x) == 1 || inner_dim(y) == 0 ? more(k, kWorthInner) : 0;
  if (rows + columns + inner == 0) return false;
  const bool weight_only = rows == 0 && inner == 0 && r.is_frozen(b) && (!bias || r.is_frozen(*bias));
  if (weight_only ? m < kWorthRows : std::min({m, k, n}) < kWorthOther) return false;
  const ValueId left = padded(r, a, rows, inner), right = padded(r, b, inner, columns);
  TensorType type = dense_type(r.b.type(node.outs[0]));
  type.sizes = {x.sizes[0] + rows, n + columns};
  type.strides = contiguous_strides(type.sizes);
  ValueId out;
  if (bias) {
    const ValueId wide = columns ? r.b.pad(*bias, {0}, {columns}, 0.0) : *bias;
    out = r.b.emit(op::addmm, {Ref{wide}, Ref{left}, Ref{right}, sym::Expr(1), sym::Expr(1)}, type);
  } else {
    out = r.b.emit(op::mm, {Ref{left}, Ref{right}}, type);
  }
  if (columns) out = r.b.slice(out, 1, 0, n);
  if (rows) out = r.b.slice(out, 0, 0, m);
  results = {out};
  return true;
}
bool pad_mm(Rewriter& r, const Node& n, Values& results, const void*) {
  return pad_product(r, n, ops::as_value(n.args[0]), ops::as_value(n.args[1]), std::nullopt, results);
}
bool pad_addmm(Rewriter& r, const Node& n, Values& results, const void*) {
  if (!ops::is_number(n.args[3], 1) || !ops::is_number(n.args[4], 1)) return false;
  return pad_product(r, n, ops::as_value(n.args[1]), ops::as_value(n.args[2]), ops::as_value(n.args[0]), results);
}

// The caller gets a dense copy of a padded product: made by blocks of rows, the two never lie in memory as wholes. A
// block is small enough to be read from the cache again.
bool copy_out_by_rows(Rewriter& r, const Node& n, Values& results, const void* user) {
  constexpr int64_t kWorthBytes = int64_t{64} << 20, kBlockBytes = int64_t{32} << 20, kRows = 256;
  const auto& state = *static_cast<const LibraryContext*>(user);
  const ValueId result = n.outs[0];
  const TensorType out = r.b.type(result);
  if (static_cast<size_t>(result) >= state.only_leaves.size() || !state.only_leaves[result] || out.rank() < 3 ||
      !all_const(out.sizes) || !on_cuda(out) || !is_reduced(out.dtype))
    return false;
  const ValueId dense = ops::as_value(n.args[0]);
  const Node* slice_found = r.uses(dense) == 1 ? r.def(skip_copies(r, dense), Prim::slice) : nullptr;
  if (!slice_found || r.uses(slice_found->outs[0]) != 1) return false;
  const ValueId whole = ops::as_value(slice_found->args[0]), taken = slice_found->outs[0];
  const Node* found = r.def(whole, op::mm);
  if (!found) found = r.def(whole, op::addmm);
  if (!found || r.uses(whole) != 1) return false;
  const Node product = *found;
  const size_t at = product.args.size() > 2 ? 1 : 0;  // addmm: behind the bias
  const TensorType wide = r.b.type(whole), narrowed = r.b.type(taken);
  if (!all_const(wide.sizes)) return false;
  const int64_t rows = wide.sizes[0].value(), columns = out.sizes.back().value();
  if (!narrowed.sizes[0].is_const(rows) || !narrowed.sizes[1].is_const(columns) || columns == 0) return false;
  // Only columns were cut off, at the end.
  const Sizes starts = ops::as_sizes(slice_found->args[1]), steps = ops::as_sizes(slice_found->args[3]);
  for (size_t d = 0; d < 2; ++d)
    if (!starts[d].is_const(0) || !steps[d].is_const(1)) return false;
  const int64_t row_bytes = wide.sizes[1].value() * info(out.dtype).bytes;
  if (rows * row_bytes < kWorthBytes) return false;
  int64_t step = kRows;
  while (step * 2 * row_bytes <= kBlockBytes) step *= 2;
  if (step >= rows) return false;
  const ValueId left = ops::as_value(product.args[at]);
  RefList products;
  for (int64_t from = 0; from < rows; from += step) {
    const int64_t to = std::min(rows, from + step);
    std::vector<Arg> args = product.args;
    args[at] = Ref{r.b.slice(left, 0, from, to)};
    TensorType type = wide;
    type.sizes[0] = to - from;
    products.push_back(Ref{r.b.slice(r.b.emit(product.op->name, std::move(args), type), 1, 0, columns)});
  }
  results = {r.b.reshape(r.b.emit(Prim::cat, {products, sym::Expr(0)}), out.sizes)};
  return true;
}

// A result that is a dense tensor in other sizes is handed over in that tensor's memory.
void hand_over_reshaped(Graph& g) {
  std::vector<int32_t> uses(g.values.size());
  std::vector<const Node*> producer(g.values.size());
  for (const Output& o : g.outputs)
    if (o.owns_memory()) ++uses[o.value];
  for (const Mutation& m : g.mutations) ++uses[m.value];
  for (size_t i = g.nodes.size(); i-- > 0;) {  // what the rewrites left over uses nothing
    const Node& n = g.nodes[i];
    bool used = n.op->effectful;
    for (ValueId v : n.outs) {
      if (v == kNoValue) continue;
      producer[v] = &n;
      used |= uses[v] > 0;
    }
    if (!used) continue;
    for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { ++uses[v]; });
  }
  for (Output& o : g.outputs) {
    if (o.kind != Output::Kind::kValue || !o.memory.is_const(0) || !o.type.offset.is_const(0) || uses[o.value] != 1)
      continue;
    const Node* n = producer[o.value];
    if (!n || n->op->prim != Prim::reshape || !is_contiguous(o.type)) continue;
    const ValueId from = ops::as_value(n->args[0]);
    if (uses[from] != 1 || !producer[from] || producer[from]->op->prim != Prim::cat) continue;
    o.kind = Output::Kind::kSlice;
    o.value = from;
    o.layout = contiguous_strides(g.type(from).sizes);
  }
}

constexpr RewriteRule kFirst[] = {
    {op::convolution, "half-precision conv -> channels last, 1x1 -> product", run_channels_last},
    {op::mm, "a @ b -> a slice of it with odd dims padded", pad_mm},
    {op::addmm, "bias + a @ b -> the same", pad_addmm},
    {op::relu, "relu(conv) -> cudnn_convolution_relu", relu_of_convolution},
    {op::relu, "relu(conv + z) -> cudnn_convolution_add_relu", relu_of_sum},
    {op::relu, "relu(b + x @ w) -> _addmm_activation", relu_of_product},
};
constexpr RewriteRule kThen[] = {
    {op::convolution_backward, "channels last, the bias' gradient -> a sum", convolution_backward},
    {op::convolution, "conv with bias -> conv, + bias", split_bias},
    {Prim::reshape, "a padded product copied out -> by blocks of rows", copy_out_by_rows},
};

}  // namespace

Graph cuda_library(Graph g, const target::Providers& providers) {
  if (!uses_cuda(g)) return g;
  LibraryContext state{providers};
  static const ops::OpRow* const conv = ops::find(op::convolution);
  // One of them would put copies all over the network.
  for (const Node& n : g.nodes) state.channels_last = state.channels_last && !(n.op == conv && is_oddly_grouped(g, n));
  g = rewrite(std::move(g), kFirst, &state);
  state.only_leaves.assign(g.values.size(), false);
  for (const Output& o : g.outputs)
    if (o.owns_memory()) state.only_leaves[o.value] = true;
  for (const Node& n : g.nodes)
    for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { state.only_leaves[v] = false; });
  for (const Mutation& m : g.mutations) state.only_leaves[m.value] = false;
  g = rewrite(std::move(g), kThen, &state);
  hand_over_reshaped(g);
  return g;
}

}  // namespace flashover::graph
