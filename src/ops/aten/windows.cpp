// Convolution, pooling, upsampling: operators whose results may be channels-last.
#include <cmath>

#include "ops/aten/infer.h"

namespace flashover::ops::aten {

std::optional<Sizes> strides_of_one_image(const TensorType& x, Sizes sizes) {
  Sizes whole = x.sizes;
  whole.insert(whole.begin(), Expr(1));
  const Sizes wanted = *format_strides(whole, MemoryFormat::kChannelsLast3d);
  for (size_t d = 0; d < x.rank(); ++d)
    if (!x.sizes[d].is_const(1) && !sym::known_eq(x.strides[d], wanted[d + 1])) return {};
  if (is_contiguous(x)) return {};
  sizes.insert(sizes.begin(), Expr(1));
  Sizes strides = *format_strides(sizes, MemoryFormat::kChannelsLast3d);
  strides.erase(strides.begin());
  return strides;
}

namespace {

bool channels_last(const TensorType& t) { return suggest_format(t) != MemoryFormat::kContiguous; }

// A list argument of `n` entries; one entry stands for all.
std::optional<Ints> spread(const Arg& a, size_t n) {
  auto v = integers(a);
  if (!v) return std::nullopt;
  if (v->size() == 1) v->assign(n, (*v)[0]);
  if (v->size() != n) return std::nullopt;
  return v;
}

// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
bool convolution(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *w = tensor(in, 1), *b = tensor(in, 2);
  if (!x || !w || x->rank() < 3 || x->rank() > 5 || w->rank() != x->rank() || x->dtype != w->dtype) return false;
  if (!is_floating(x->dtype) || has_zero_size(*x) || has_zero_size(*w) || x->device != w->device) return false;
  if (b && (b->rank() != 1 || b->dtype != x->dtype)) return false;
  size_t n = x->rank() - 2;
  auto stride = spread(arg(in, 3), n), padding = spread(arg(in, 4), n), dilation = spread(arg(in, 5), n),
       extra = spread(arg(in, 7), n);
  bool transposed = flag(arg(in, 6));
  auto groups = integer(arg(in, 8));
  if (!stride || !padding || !dilation || !extra || !groups || *groups < 1) return false;
  if (x->device.type != DeviceType::kCPU) return false;
  Sizes sizes{x->sizes[0]};
  if (transposed) {
    if (!sym::known_eq(x->sizes[1], w->sizes[0])) return false;
    sizes.push_back(w->sizes[1] * *groups);
  } else {
    if (!sym::known_eq(x->sizes[1], w->sizes[1] * *groups) || !sym::known_divisible(w->sizes[0], *groups)) return false;
    sizes.push_back(w->sizes[0]);
  }
  if (b && !sym::known_eq(b->sizes[0], sizes[1])) return false;
  bool dilated = false;
  for (size_t i = 0; i < n; ++i) {
    Expr k = (w->sizes[i + 2] - 1) * (*dilation)[i], in_size = x->sizes[i + 2];
    if ((*stride)[i] < 1 || (*dilation)[i] < 1 || (*padding)[i] < 0) return false;
    dilated |= (*dilation)[i] != 1;
    if (transposed)
      sizes.push_back((in_size - 1) * (*stride)[i] - 2 * (*padding)[i] + k + (*extra)[i] + 1);
    else
      sizes.push_back(sym::floordiv(in_size + 2 * (*padding)[i] - k - 1, (*stride)[i]) + 1);
    if (!sym::known_lt(0, sizes.back())) return false;
  }
  TensorType out = fresh(*x, x->dtype, sizes);
  if (n == 1) {  // run as 2-d over a contiguous input; a permuted weight makes that channels-last, on every backend
    TensorType wide = *w;
    wide.strides.insert(wide.strides.begin() + 2, w->sizes[2] * w->strides[2]);
    wide.sizes.insert(wide.sizes.begin() + 2, Expr(1));
    if (channels_last(wide)) {
      const Sizes& s = out.sizes;
      out.strides = *format_strides({s[0], s[1], Expr(1), s[2]}, MemoryFormat::kChannelsLast);
      out.strides.erase(out.strides.begin() + 2);
    }
    return one(outs, std::move(out));
  }
  if (!channels_last(*x) && !channels_last(*w)) return one(outs, std::move(out));
  // Channels-last: only where every CPU backend that may be chosen agrees.
  if (n == 3 || x->dtype == DType::kF64 || transposed || (dilated && x->dtype != DType::kF32)) return false;
  out.strides = *format_strides(out.sizes, MemoryFormat::kChannelsLast);
  return one(outs, std::move(out));
}

// ATen's pooling_output_shape.
std::optional<Expr> pooled(Expr size, int64_t kernel, int64_t padding, int64_t stride, int64_t dilation,
                           bool ceil_mode) {
  if (stride < 1 || kernel < 1 || dilation < 1 || padding < 0 || padding > (dilation * (kernel - 1) + 1) / 2)
    return std::nullopt;
  const Expr top = size + 2 * padding - dilation * (kernel - 1) - 1 + (ceil_mode ? stride - 1 : 0);
  Expr out = sym::floordiv(top, stride) + 1;
  if (ceil_mode && !sym::known_lt((out - 1) * stride, size + padding)) out = out - 1;
  if (!sym::known_le(1, out)) return std::nullopt;
  return out;
}

template <size_t n, bool is_max>
bool pool(In in, Types& outs) {  // (self, kernel, stride, padding, [dilation,] ceil_mode, ...)
  const TensorType* x = tensor(in, 0);
  if (!x || x->rank() < n + 1 || x->rank() > n + 2 || has_empty_image(*x, n) || is_complex(x->dtype) ||
      x->dtype == DType::kBool)
    return false;
  if (!is_max && is_integral(x->dtype) && x->dtype != DType::kI64) return false;
  auto kernel = spread(arg(in, 1), n);
  auto stride = integers(arg(in, 2));
  auto padding = spread(arg(in, 3), n);
  auto dilation = is_max ? spread(arg(in, 4), n) : Ints(n, 1);
  bool ceil_mode = flag(arg(in, is_max ? 5 : 4));
  if (!kernel || !stride || !padding || !dilation) return false;
  if (stride->empty()) stride = kernel;
  if (stride->size() == 1) stride->assign(n, (*stride)[0]);
  if (stride->size() != n) return false;
  Sizes sizes(x->sizes.begin(), x->sizes.end() - n);
  for (size_t i = 0; i < n; ++i) {
    const Expr size = x->sizes[x->rank() - n + i];
    if (n == 3 && !is_max && !sym::known_le((*kernel)[i], size)) return false;  // padding apart
    auto out = pooled(size, (*kernel)[i], (*padding)[i], (*stride)[i], (*dilation)[i], ceil_mode);
    if (!out) return false;
    sizes.push_back(*out);
  }
  TensorType out = fresh(*x, x->dtype, sizes);
  if (x->rank() == n + 2 && (is_max || n == 2) && channels_last(*x))
    out.strides = *format_strides(sizes, suggest_format(*x));
  if (x->rank() == n + 1 && n == 3 && is_max)
    if (auto strides = strides_of_one_image(*x, sizes)) out.strides = std::move(*strides);
  if (!is_max) return one(outs, std::move(out));
  outs = {out, out};
  outs[1].dtype = DType::kI64;
  return true;
}

template <size_t n, bool is_max>
bool adaptive_pool(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto* size = std::get_if<Sizes>(&arg(in, 1));
  if (!x || !size || size->size() != n || x->rank() < n + 1 || x->rank() > n + 2) return false;
  if (!is_floating(x->dtype) || has_empty_image(*x, n)) return false;
  Sizes sizes(x->sizes.begin(), x->sizes.end() - n);
  for (Expr e : *size) {
    if (e.is_const() && e.value() < 1) return false;
    sizes.push_back(e);
  }
  TensorType out = fresh(*x, x->dtype, sizes);
  if (n == 2 && x->rank() == 4 && channels_last(*x)) out.strides = *format_strides(sizes, MemoryFormat::kChannelsLast);
  if (n == 3 && x->rank() == 5 && channels_last(*x)) return false;
  if (!is_max) return one(outs, std::move(out));
  outs = {out, out};
  outs[1].dtype = DType::kI64;
  return true;
}

// floor(size * factor), as ATen computes it in doubles. Of a size that is a symbol only where no product is rounded.
std::optional<Expr> scaled(Expr size, double factor) {
  if (size.is_const()) return static_cast<int64_t>(std::floor(static_cast<double>(size.value()) * factor));
  constexpr int64_t kParts = 1024, kMost = int64_t{1} << 20;
  const double parts = factor * static_cast<double>(kParts);
  if (!(parts >= 1) || parts > static_cast<double>(kMost) || parts != std::floor(parts)) return std::nullopt;
  return sym::floordiv(size * static_cast<int64_t>(parts), kParts);
}

template <size_t n>
bool upsample_to(const TensorType* x, const Sizes& size, Types& outs) {
  if (!x || x->rank() != n + 2 || size.size() != n || has_empty_image(*x, n)) return false;
  Sizes sizes{x->sizes[0], x->sizes[1]};
  for (Expr e : size) {
    if (!sym::known_lt(0, e)) return false;
    sizes.push_back(e);
  }
  TensorType out = fresh(*x, x->dtype, sizes);
  if (n >= 2 && channels_last(*x)) out.strides = *format_strides(sizes, suggest_format(*x));
  return one(outs, std::move(out));
}
template <size_t n, bool floats_only>
bool upsample(In in, Types& outs) {
  auto* size = std::get_if<Sizes>(&arg(in, 1));
  const TensorType* x = tensor(in, 0);
  if (!x || !(is_floating(x->dtype) || (!floats_only && x->dtype == DType::kU8))) return false;
  return size && upsample_to<n>(x, *size, outs);
}
template <size_t n, size_t scales, bool floats_only>
bool upsample_vec(In in, Types& outs) {  // (input, output_size, [align_corners,] scale_factors)
  const TensorType* x = tensor(in, 0);
  if (!x || x->rank() != n + 2 || !(is_floating(x->dtype) || (!floats_only && x->dtype == DType::kU8))) return false;
  if (auto* size = std::get_if<Sizes>(&arg(in, 1))) return upsample_to<n>(x, *size, outs);
  auto* factors = std::get_if<std::vector<double>>(&arg(in, scales));
  if (!factors || factors->size() != n) return false;
  Sizes size;
  for (size_t i = 0; i < n; ++i) {
    const auto out = scaled(x->sizes[i + 2], (*factors)[i]);
    if (!out) return false;
    size.push_back(*out);
  }
  return upsample_to<n>(x, size, outs);
}

bool max_unpool2d(In in, Types& outs) {  // (self, indices, output_size)
  const TensorType* x = tensor(in, 0);
  const auto* size = std::get_if<Sizes>(&arg(in, 2));
  if (!x || !size || size->size() != 2 || x->rank() < 3 || x->rank() > 4 || has_zero_size(*x)) return false;
  Sizes sizes(x->sizes.begin(), x->sizes.end() - 2);
  sizes.insert(sizes.end(), size->begin(), size->end());
  TensorType out = fresh(*x, x->dtype, sizes);
  if (channels_last(*x)) out.strides = *format_strides(sizes, suggest_format(*x));
  return one(outs, std::move(out));
}
bool grid_sampler(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *grid = tensor(in, 1);
  if (!x || !grid || x->dtype != grid->dtype || !is_floating(x->dtype) || x->rank() != 4 || grid->rank() != 4)
    return false;
  if (has_zero_size(*x) || has_zero_size(*grid)) return false;
  if (channels_last(*x)) return false;
  return one(outs, fresh(*x, x->dtype, {x->sizes[0], x->sizes[1], grid->sizes[1], grid->sizes[2]}));
}

// cuDNN's, for CUDA: dense results, whatever the operands' strides.
bool cudnn_grid_sampler(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *grid = tensor(in, 1);
  if (!x || !grid || x->rank() != 4 || grid->rank() != 4) return false;
  return one(outs, fresh(*x, x->dtype, {x->sizes[0], x->sizes[1], grid->sizes[1], grid->sizes[2]}));
}

bool cudnn_grid_sampler_backward(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *grid = tensor(in, 1);
  if (!x || !grid || x->rank() != 4 || grid->rank() != 4) return false;
  outs = {fresh(*x, x->dtype, x->sizes), fresh(*grid, grid->dtype, grid->sizes)};
  return true;
}

}  // namespace

void add_windows(Table& t) {
  const auto kind = OpKind::kIndex;
  t.add("convolution.default", OpKind::kExtern, convolution);
  t.add("max_pool2d_with_indices.default", kind, pool<2, true>);
  t.add("max_pool3d_with_indices.default", kind, pool<3, true>);
  t.add("avg_pool2d.default", kind, pool<2, false>);
  t.add("avg_pool3d.default", kind, pool<3, false>);
  t.add("_adaptive_avg_pool2d.default", kind, adaptive_pool<2, false>);
  t.add("_adaptive_avg_pool3d.default", kind, adaptive_pool<3, false>);
  t.add("adaptive_max_pool2d.default", OpKind::kExtern, adaptive_pool<2, true>);
  t.add("upsample_nearest1d.default", kind, upsample<1, false>);
  t.add("upsample_nearest2d.default", kind, upsample<2, false>);
  t.add("upsample_nearest3d.default", kind, upsample<3, false>);
  t.add("_upsample_nearest_exact1d.default", kind, upsample<1, false>);
  t.add("_upsample_nearest_exact2d.default", kind, upsample<2, false>);
  t.add("_upsample_nearest_exact3d.default", kind, upsample<3, false>);
  t.add("upsample_linear1d.default", kind, upsample<1, true>);
  t.add("upsample_bilinear2d.default", kind, upsample<2, true>);
  t.add("upsample_bicubic2d.default", kind, upsample<2, true>);
  t.add("upsample_trilinear3d.default", kind, upsample<3, true>);
  t.add("_upsample_bilinear2d_aa.default", OpKind::kExtern, upsample<2, true>);
  t.add("_upsample_bicubic2d_aa.default", OpKind::kExtern, upsample<2, true>);
  t.add("upsample_nearest1d.vec", kind, upsample_vec<1, 2, false>);
  t.add("upsample_nearest2d.vec", kind, upsample_vec<2, 2, false>);
  t.add("upsample_nearest3d.vec", kind, upsample_vec<3, 2, false>);
  t.add("_upsample_nearest_exact1d.vec", kind, upsample_vec<1, 2, false>);
  t.add("_upsample_nearest_exact2d.vec", kind, upsample_vec<2, 2, false>);
  t.add("_upsample_nearest_exact3d.vec", kind, upsample_vec<3, 2, false>);
  t.add("upsample_linear1d.vec", kind, upsample_vec<1, 3, true>);
  t.add("upsample_bilinear2d.vec", kind, upsample_vec<2, 3, true>);
  t.add("upsample_bicubic2d.vec", kind, upsample_vec<2, 3, true>);
  t.add("upsample_trilinear3d.vec", kind, upsample_vec<3, 3, true>);
  t.add("grid_sampler_2d.default", OpKind::kExtern, grid_sampler);
  t.add("cudnn_grid_sampler.default", OpKind::kExtern, cudnn_grid_sampler);
  t.add("cudnn_grid_sampler_backward.default", OpKind::kExtern, cudnn_grid_sampler_backward);
  t.add("max_unpool2d.default", OpKind::kExtern, max_unpool2d);
}

}  // namespace flashover::ops::aten
