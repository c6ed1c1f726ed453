// Operators that derivative formulas call.
#include <algorithm>
#include <array>

#include "ops/aten/infer.h"

namespace flashover::ops::aten {
namespace {

bool softmax_backward(In in, Types& outs) {  // (grad_output, output, dim, input_dtype)
  const TensorType *g = tensor(in, 0), *y = tensor(in, 1);
  auto d = dtype_of(arg(in, 3));
  if (!g || !y || !d || g->dtype != y->dtype || *d != g->dtype || !same_sizes(g->sizes, y->sizes)) return false;
  return one(outs, fresh(*g, g->dtype, g->sizes));
}

// Zeros of the forward's input sizes, filled from the gradient: slice, select, diagonal, unfold.
bool into_sizes(In in, Types& outs) {
  const TensorType* g = tensor(in, 0);
  auto* s = std::get_if<Sizes>(&arg(in, 1));
  return g && s && one(outs, fresh(*g, g->dtype, *s));
}

bool embedding_dense_backward(In in, Types& outs) {  // (grad_output, indices, num_weights, ...)
  const TensorType* g = tensor(in, 0);
  auto n = size_expr(arg(in, 2));
  return g && n && g->rank() > 0 && one(outs, fresh(*g, g->dtype, {*n, g->sizes.back()}));
}

TensorType dense(const TensorType& t) { return fresh(t, t.dtype, t.sizes); }

// Gradients that output_mask leaves out are undefined tensors.
bool drop_unwanted(const Arg& mask, Types& outs) {
  const auto* flags = std::get_if<std::vector<bool>>(&mask);
  if (!flags || flags->size() != outs.size()) return false;
  for (size_t i = 0; i < outs.size(); ++i)
    if (!(*flags)[i]) outs[i] = TensorType{};
  return true;
}

bool layer_norm_backward(In in, Types& outs) {  // (grad, input, shape, mean, rstd, weight, bias, mask)
  const TensorType *x = tensor(in, 1), *w = tensor(in, 5), *b = tensor(in, 6);
  const auto* mask = std::get_if<std::vector<bool>>(&arg(in, 7));
  const auto* shape = std::get_if<Sizes>(&arg(in, 2));
  if (!x || !mask || mask->size() != 3 || !shape || (!w && (*mask)[1]) || (!b && (*mask)[2])) return false;
  if (std::ranges::any_of(*shape, [](Expr e) { return e.is_const(0); })) return false;  // (there may be no rows of it)
  outs = {dense(*x), w ? dense(*w) : TensorType{}, b ? dense(*b) : TensorType{}};
  return drop_unwanted(arg(in, 7), outs);
}
bool group_norm_backward(In in, Types& outs) {  // (grad, input, mean, rstd, weight, N, C, HxW, group, mask)
  const TensorType *x = tensor(in, 1), *w = tensor(in, 4);
  const auto* mask = std::get_if<std::vector<bool>>(&arg(in, 9));
  if (!x || !mask || mask->size() != 3 || has_zero_size(*x) || (!w && ((*mask)[1] || (*mask)[2]))) return false;
  const bool cpu = x->device.type == DeviceType::kCPU;
  TensorType gradient;
  if (!fresh_like(*x, x->dtype, cpu ? suggest_format(*x) : MemoryFormat::kContiguous, gradient)) return false;
  outs = {std::move(gradient), w ? dense(*w) : TensorType{}, w ? dense(*w) : TensorType{}};
  return drop_unwanted(arg(in, 9), outs);
}

bool batch_norm_backward(In in,
                         Types& outs) {  // (grad, input, weight, mean, var, save_mean, save_invstd, train, eps, mask)
  const TensorType *g = tensor(in, 0), *x = tensor(in, 1), *w = tensor(in, 2);
  const bool mixed = w && x && is_reduced(x->dtype) && w->dtype == DType::kF32;
  if (!g || !x || (w && w->dtype != x->dtype && !mixed) || has_zero_size(*x)) return false;
  const MemoryFormat format = suggest_format(*x);
  if (format != MemoryFormat::kContiguous || !contiguous(*x) || !contiguous(*g)) {
    // Where numbers are known, shape functions tell.
    if (known_sizes(*x) && known_sizes(*g)) return false;
    if (!(format == MemoryFormat::kContiguous ? contiguous(*x) : channels_last_contiguous(*x))) return false;
  }
  TensorType gradient;
  if (!fresh_like(*x, x->dtype, format, gradient)) return false;
  const auto* mask = std::get_if<std::vector<bool>>(&arg(in, 9));
  if (!w && (!mask || mask->size() != 3 || (*mask)[1] || (*mask)[2])) return false;
  outs = {std::move(gradient), w ? dense(*w) : TensorType{}, w ? dense(*w) : TensorType{}};
  return drop_unwanted(arg(in, 9), outs);
}
bool convolution_backward(In in, Types& outs) {  // (grad, input, weight, bias_sizes, ..., mask)
  const TensorType *g = tensor(in, 0), *x = tensor(in, 1), *w = tensor(in, 2);
  const auto* bias = std::get_if<Sizes>(&arg(in, 3));
  const auto* mask = std::get_if<std::vector<bool>>(&arg(in, 10));
  if (!g || !x || !w || !mask || mask->size() != 3 || (!bias && (*mask)[2]) || has_zero_size(*x) || has_zero_size(*g))
    return false;
  const auto format = [](const TensorType& a, const TensorType& b) {
    const MemoryFormat f = suggest_format(a);
    return f != MemoryFormat::kContiguous ? f : suggest_format(b);
  };
  const bool plain = std::ranges::all_of(std::array{g, x, w}, [](const TensorType* t) {
    return contiguous(*t) && suggest_format(*t) == MemoryFormat::kContiguous;
  });
  // Where numbers are known, shape functions tell of the other layouts.
  if (!plain && known_sizes(*x) && known_sizes(*g) && known_sizes(*w)) return false;
  outs.assign(3, {});
  if ((*mask)[0] && !fresh_like(*x, x->dtype, format(*g, *w), outs[0])) return false;
  if ((*mask)[1] && !fresh_like(*w, w->dtype, format(*x, *g), outs[1])) return false;
  if ((*mask)[2]) outs[2] = fresh(*g, g->dtype, *bias);
  return true;
}

// The gradient of argument `at`, in the format that its layout suggests.
template <size_t at>
bool suggested(In in, Types& outs) {
  const TensorType* x = tensor(in, at);
  TensorType out;
  return x && fresh_like(*x, x->dtype, suggest_format(*x), out) && one(outs, std::move(out));
}
template <size_t at>
bool dense_of(In in, Types& outs) {
  const TensorType* x = tensor(in, at);
  return x && one(outs, dense(*x));
}
bool upsample_backward(In in, Types& outs) {  // (grad, output_size, input_size, ...)
  const TensorType* g = tensor(in, 0);
  auto* s = std::get_if<Sizes>(&arg(in, 2));
  if (!g || !s) return false;
  auto strides = format_strides(*s, suggest_format(*g));
  if (!strides) return false;
  TensorType out = fresh(*g, g->dtype, *s);
  out.strides = *strides;
  return one(outs, std::move(out));
}
// Where sizes are symbols and everything lies plainly; of the rest shape functions tell.
template <size_t at>
bool plain_gradient(In in, Types& outs) {  // of argument `at`
  const TensorType *g = tensor(in, 0), *x = tensor(in, at);
  if (!g || !x || known_sizes(*x) || has_zero_size(*x)) return false;
  for (const TensorType* t : {g, x})
    if (!contiguous(*t) || suggest_format(*t) != MemoryFormat::kContiguous) return false;
  return one(outs, dense(*x));
}
// Of one image, channels last, CUDA's kernel gives the batch of one that it works on; autograd sums over that.
bool max_pool3d_backward(In in, Types& outs) {
  const TensorType* x = tensor(in, 1);
  if (!x || x->rank() != 4 || x->device.type != DeviceType::kCUDA || !strides_of_one_image(*x, x->sizes))
    return plain_gradient<1>(in, outs);
  TensorType out = fresh(*x, x->dtype, x->sizes);
  out.sizes.insert(out.sizes.begin(), sym::Expr(1));
  out.strides = *format_strides(out.sizes, MemoryFormat::kChannelsLast3d);
  return one(outs, std::move(out));
}
bool plain_upsample_backward(In in, Types& outs) {  // (grad, output_size, input_size, ...)
  const TensorType* g = tensor(in, 0);
  if (!g || known_sizes(*g) || has_zero_size(*g) || suggest_format(*g) != MemoryFormat::kContiguous) return false;
  return upsample_backward(in, outs);
}
bool dropout_backward(In in, Types& outs) {  // (grad, mask, scale)
  const TensorType *g = tensor(in, 0), *mask = tensor(in, 1);
  if (!g || !mask || mask->dtype != DType::kBool || !same_sizes(g->sizes, mask->sizes)) return false;
  const DType d = is_integral_or_bool(g->dtype) ? in.default_dtype : g->dtype;  // the scale is a float
  const TensorType* both[] = {g, mask};
  return iterate_promoted(both, d, d, outs);
}
// Loss gradients over (grad, self, target, ...): contiguous, of the broadcast operands.
bool loss_backward(In in, Types& outs) {
  const TensorType *g = tensor(in, 0), *x = tensor(in, 1), *y = tensor(in, 2);
  if (!g || !x || !y || x->dtype != y->dtype || x->dtype != g->dtype || !same_sizes(x->sizes, y->sizes)) return false;
  if (g->rank() != 0 && !same_sizes(g->sizes, x->sizes)) return false;
  return one(outs, contiguous(*x) ? dense(*x) : fresh(*x, x->dtype, x->sizes));
}

}  // namespace

void add_backward(Table& t) {
  t.add("_softmax_backward_data.default", OpKind::kReduction, softmax_backward);
  t.add("_log_softmax_backward_data.default", OpKind::kReduction, softmax_backward);
  for (const char* name :
       {"slice_backward.default", "select_backward.default", "diagonal_backward.default", "unfold_backward.default"})
    t.add(name, OpKind::kIndex, into_sizes);
  t.add("embedding_dense_backward.default", OpKind::kIndex, embedding_dense_backward);
  t.add("native_layer_norm_backward.default", OpKind::kReduction, layer_norm_backward);
  t.add("native_group_norm_backward.default", OpKind::kReduction, group_norm_backward);
  t.add("native_batch_norm_backward.default", OpKind::kReduction, batch_norm_backward);
  t.add("convolution_backward.default", OpKind::kExtern, convolution_backward);
  for (const char* name : {"max_pool2d_with_indices_backward.default", "avg_pool2d_backward.default"})
    t.add(name, OpKind::kIndex, suggested<1>);
  for (const char* name : {"nll_loss_backward.default", "nll_loss2d_backward.default", "glu_backward.default",
                           "multi_margin_loss_backward.default", "multilabel_margin_loss_backward.default",
                           "fractional_max_pool3d_backward.default"})
    t.add(name, OpKind::kIndex, dense_of<1>);
  for (const char* name : {"upsample_nearest2d_backward.default", "upsample_bilinear2d_backward.default",
                           "upsample_bicubic2d_backward.default"})
    t.add(name, OpKind::kIndex, upsample_backward);
  for (const char* name :
       {"_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default",
        "adaptive_max_pool2d_backward.default", "adaptive_max_pool3d_backward.default", "avg_pool3d_backward.default",
        "reflection_pad1d_backward.default", "replication_pad1d_backward.default"})
    t.add(name, OpKind::kExtern, plain_gradient<1>);
  t.add("max_pool3d_with_indices_backward.default", OpKind::kExtern, max_pool3d_backward);
  for (const char* name : {"upsample_nearest1d_backward.default", "upsample_nearest3d_backward.default",
                           "_upsample_nearest_exact1d_backward.default", "_upsample_nearest_exact2d_backward.default",
                           "_upsample_nearest_exact3d_backward.default", "upsample_linear1d_backward.default",
                           "upsample_trilinear3d_backward.default", "_upsample_bilinear2d_aa_backward.default",
                           "_upsample_bicubic2d_aa_backward.default"})
    t.add(name, OpKind::kExtern, plain_upsample_backward);
  t.add("native_dropout_backward.default", OpKind::kPointwise, dropout_backward);
  for (const char* name :
       {"mse_loss_backward.default", "smooth_l1_loss_backward.default", "huber_loss_backward.default"})
    t.add(name, OpKind::kPointwise, loss_backward);
}

}  // namespace flashover::ops::aten
