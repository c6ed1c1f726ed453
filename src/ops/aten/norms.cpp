// Normalizations with statistics as further results.
#include "ops/aten/infer.h"

namespace flashover::ops::aten {
namespace {

// Reduced-precision input with f32 parameters: statistics are f32. Other mixtures are rejected by ATen.
std::optional<DType> statistics_dtype(const TensorType& x, std::initializer_list<const TensorType*> parameters) {
  DType d = x.dtype;
  for (const TensorType* p : parameters) {
    if (!p || p->dtype == x.dtype) continue;
    if (!is_reduced(x.dtype) || p->dtype != DType::kF32) return std::nullopt;
    d = DType::kF32;
  }
  for (const TensorType* p : parameters)
    if (p && p->dtype != d) return std::nullopt;
  return d;
}

// CUDA kernels accumulate in f32 and hand that out.
DType on_device(DType d, const TensorType& x) {
  return x.device.type == DeviceType::kCUDA && is_reduced(d) ? DType::kF32 : d;
}

bool layer_norm(In in, Types& outs) {  // (input, normalized_shape, weight, bias, eps)
  const TensorType *x = tensor(in, 0), *w = tensor(in, 2), *b = tensor(in, 3);
  auto* shape = std::get_if<Sizes>(&arg(in, 1));
  if (!x || !shape || shape->empty() || shape->size() > x->rank() || !is_floating(x->dtype)) return false;
  size_t axis = x->rank() - shape->size();
  if (!same_sizes(*shape, Sizes(x->sizes.begin() + static_cast<int64_t>(axis), x->sizes.end()))) return false;
  for (const TensorType* p : {w, b})
    if (p && !same_sizes(p->sizes, *shape)) return false;
  auto d = statistics_dtype(*x, {w, b});
  if (!d) return false;
  *d = on_device(*d, *x);
  Sizes stat = x->sizes;
  for (size_t i = axis; i < x->rank(); ++i) stat[i] = 1;
  outs = {fresh(*x, x->dtype, x->sizes), fresh(*x, *d, stat), fresh(*x, *d, stat)};
  return true;
}

bool group_norm(In in, Types& outs) {  // (input, weight, bias, N, C, HxW, group, eps)
  const TensorType *x = tensor(in, 0), *w = tensor(in, 1), *b = tensor(in, 2);
  auto n = size_expr(arg(in, 3)), group = size_expr(arg(in, 6));
  if (!x || !n || !group || !is_floating(x->dtype)) return false;
  auto d = statistics_dtype(*x, {w, b});
  auto strides = format_strides(x->sizes, suggest_format(*x));
  if (!d || !strides) return false;
  outs = {fresh(*x, x->dtype, x->sizes), fresh(*x, *d, {*n, *group}), fresh(*x, *d, {*n, *group})};
  outs[0].strides = *strides;
  return true;
}

bool batch_norm_of(const TensorType* x, std::initializer_list<const TensorType*> parameters, bool training,
                   Types& outs) {
  if (!x || x->rank() < 2 || !is_floating(x->dtype) || has_zero_size(*x)) return false;
  auto d = statistics_dtype(*x, parameters);
  if (!d) return false;
  TensorType out;
  MemoryFormat last = x->rank() == 4 ? MemoryFormat::kChannelsLast : MemoryFormat::kChannelsLast3d;
  MemoryFormat format = contiguous(*x)                 ? MemoryFormat::kContiguous
                        : channels_last_contiguous(*x) ? last
                                                       : suggest_format(*x);
  if (!fresh_like(*x, x->dtype, format, out)) return false;
  if (training) *d = on_device(*d, *x);
  Sizes stat{training ? x->sizes[1] : Expr(0)};
  outs = {out, fresh(*x, *d, stat), fresh(*x, *d, stat)};
  return true;
}
bool batch_norm(In in, Types& outs) {  // (input, weight, bias, mean, var, training, momentum, eps)
  return batch_norm_of(tensor(in, 0), {tensor(in, 1), tensor(in, 2), tensor(in, 3), tensor(in, 4)}, flag(arg(in, 5)),
                       outs);
}
// ... and the new running statistics.
bool batch_norm_functional(In in, Types& outs) {
  if (!tensor(in, 3) || !tensor(in, 4) || !batch_norm(in, outs)) return false;
  for (size_t i : {3, 4}) outs.push_back(fresh(*tensor(in, i), tensor(in, i)->dtype, tensor(in, i)->sizes));
  return true;
}
bool batch_norm_no_training(In in, Types& outs) {
  return batch_norm_of(tensor(in, 0), {tensor(in, 1), tensor(in, 2), tensor(in, 3), tensor(in, 4)}, false, outs);
}
// On the CPU, where nothing is reserved. (input, weight, bias, mean, var, momentum, eps)
bool batch_norm_with_update(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  if (!x || x->device.type != DeviceType::kCPU || !tensor(in, 3) || !tensor(in, 4)) return false;
  if (!batch_norm_of(x, {tensor(in, 1), tensor(in, 2), tensor(in, 3), tensor(in, 4)}, true, outs)) return false;
  outs.push_back(fresh(*x, DType::kU8, {0}));
  return true;
}
bool batch_norm_no_stats(In in, Types& outs) {
  return flag(arg(in, 3)) && batch_norm_of(tensor(in, 0), {tensor(in, 1), tensor(in, 2)}, true, outs);
}

}  // namespace

void add_norms(Table& t) {
  const auto kind = OpKind::kReduction;
  t.add("native_layer_norm.default", kind, layer_norm);
  t.add("native_group_norm.default", kind, group_norm);
  t.add("native_batch_norm.default", kind, batch_norm);
  Row& legit = t.add("_native_batch_norm_legit.default", kind, batch_norm);
  legit.mutates = 1u << 3 | 1u << 4;
  legit.functional = "aten._native_batch_norm_legit_functional.default";
  t.add("_native_batch_norm_legit_functional.default", kind, batch_norm_functional);
  t.add("_native_batch_norm_legit.no_stats", kind, batch_norm_no_stats);
  t.add("_batch_norm_with_update.default", OpKind::kExtern, batch_norm_with_update).mutates = 1u << 3 | 1u << 4;
  t.add("_native_batch_norm_legit_no_training.default", kind, batch_norm_no_training);
}

}  // namespace flashover::ops::aten
