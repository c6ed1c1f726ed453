// Operators that models use now and then.
#include "ops/aten/infer.h"

namespace flashover::ops::aten {
namespace {

std::optional<Ints> pair_of(const Arg& a) {
  auto v = integers(a);
  if (v && v->size() == 1) v->assign(2, (*v)[0]);
  if (!v || v->size() != 2) return std::nullopt;
  return v;
}
// How many positions a sliding window has along a dim.
std::optional<Expr> positions(Expr size, int64_t kernel, int64_t dilation, int64_t padding, int64_t stride) {
  if (stride < 1 || !sym::known_le(dilation * (kernel - 1) + 1, size + 2 * padding)) return std::nullopt;
  return sym::floordiv(size + 2 * padding - dilation * (kernel - 1) - 1, stride) + 1;
}

bool im2col(In in, Types& outs) {  // (self, kernel, dilation, padding, stride)
  const TensorType* x = tensor(in, 0);
  auto k = pair_of(arg(in, 1)), d = pair_of(arg(in, 2)), p = pair_of(arg(in, 3)), s = pair_of(arg(in, 4));
  if (!x || !k || !d || !p || !s || (x->rank() != 3 && x->rank() != 4) || has_zero_size(*x)) return false;
  const size_t n = x->rank();
  Expr windows = 1;
  for (size_t i = 0; i < 2; ++i) {
    const auto at = positions(x->sizes[n - 2 + i], (*k)[i], (*d)[i], (*p)[i], (*s)[i]);
    if (!at) return false;
    windows *= *at;
  }
  Sizes out;
  if (n == 4) out.push_back(x->sizes[0]);
  out.push_back(x->sizes[n - 3] * ((*k)[0] * (*k)[1]));
  out.push_back(windows);
  return one(outs, fresh(*x, x->dtype, out));
}
bool col2im(In in, Types& outs) {  // (self, output_size, kernel, dilation, padding, stride)
  const TensorType* x = tensor(in, 0);
  const auto* size = std::get_if<Sizes>(&arg(in, 1));
  auto k = pair_of(arg(in, 2)), d = pair_of(arg(in, 3)), p = pair_of(arg(in, 4)), s = pair_of(arg(in, 5));
  if (!x || !size || size->size() != 2 || !k || !d || !p || !s || (x->rank() != 2 && x->rank() != 3) ||
      has_zero_size(*x))
    return false;
  size_t n = x->rank();
  int64_t taps = (*k)[0] * (*k)[1];
  if (taps < 1 || !sym::known_divisible(x->sizes[n - 2], taps)) return false;
  Expr windows = 1;  // ATen words the error where the columns are others
  for (size_t i = 0; i < 2; ++i) {
    const auto at = positions((*size)[i], (*k)[i], (*d)[i], (*p)[i], (*s)[i]);
    if (!at) return false;
    windows *= *at;
  }
  if (!sym::known_eq(windows, x->sizes[n - 1])) return false;
  Sizes out;
  if (n == 3) out.push_back(x->sizes[0]);
  out.push_back(sym::floordiv(x->sizes[n - 2], taps));
  out.insert(out.end(), size->begin(), size->end());
  return one(outs, fresh(*x, x->dtype, out));
}

bool take(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *index = tensor(in, 1);
  return x && index && index->dtype == DType::kI64 && one(outs, fresh(*x, x->dtype, index->sizes));
}
bool renorm(In in, Types& outs) {  // (self, p, dim, maxnorm)
  const TensorType* x = tensor(in, 0);
  const auto dim = integer(arg(in, 2));
  return x && dim && x->rank() > 1 && wrap_dim(*dim, x->rank()) && one(outs, fresh(*x, x->dtype, x->sizes));
}
bool cross(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *y = tensor(in, 1);
  if (!x || !y || x->dtype != y->dtype || x->rank() != y->rank()) return false;
  auto sizes = broadcast(x->sizes, y->sizes);
  return sizes && one(outs, fresh(*x, x->dtype, *sizes));
}
bool eig(In in, Types& outs) {  // values, vectors: LAPACK's, column by column
  const TensorType* x = tensor(in, 0);
  if (!x || x->rank() < 2 || x->device.type != DeviceType::kCPU || has_zero_size(*x)) return false;
  const bool narrow = x->dtype == DType::kF32 || x->dtype == DType::kC64;
  if (!narrow && x->dtype != DType::kF64 && x->dtype != DType::kC128) return false;
  if (!sym::known_eq(x->sizes[x->rank() - 1], x->sizes[x->rank() - 2])) return false;
  const DType dtype = narrow ? DType::kC64 : DType::kC128;
  outs = {fresh(*x, dtype, Sizes(x->sizes.begin(), x->sizes.end() - 1)), fresh(*x, dtype, x->sizes)};
  std::swap(outs[1].strides[x->rank() - 1], outs[1].strides[x->rank() - 2]);
  return true;
}
bool histogram(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto bins = size_expr(arg(in, 1));
  return x && bins && sym::known_lt(0, *bins) && one(outs, fresh(*x, x->dtype, {*bins}));
}
bool trace(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  if (!x || x->rank() != 2) return false;
  return one(outs, fresh(*x, is_integral_or_bool(x->dtype) ? DType::kI64 : x->dtype, {}));
}
bool addr(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *u = tensor(in, 1), *v = tensor(in, 2);
  if (!x || !u || !v || u->rank() != 1 || v->rank() != 1 || x->dtype != u->dtype || x->dtype != v->dtype) return false;
  Sizes sizes{u->sizes[0], v->sizes[0]};
  if (!same_sizes(x->sizes, sizes) || !contiguous(*x) || !contiguous(*u) || !contiguous(*v)) return false;
  if (has_zero_size(*x) || sizes[0].is_const(1) || sizes[1].is_const(1)) return false;
  return one(outs, fresh(*x, x->dtype, sizes));
}
bool multinomial(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto n = size_expr(arg(in, 1));
  if (!x || !n || x->rank() < 1 || x->rank() > 2 || !is_floating(x->dtype)) return false;
  Sizes sizes = x->sizes;
  sizes.back() = *n;
  return one(outs, fresh(*x, DType::kI64, sizes));
}
bool weight_norm(In in, Types& outs) {  // (v, g, dim) -> w, norm
  const TensorType *v = tensor(in, 0), *g = tensor(in, 1);
  if (!v || !g || v->dtype != g->dtype || !is_floating(v->dtype)) return false;
  TensorType norm = *g;
  norm.offset = 0;
  norm.wrapped_number = false;
  if (g->dtype == DType::kBF16) norm.dtype = DType::kF32;
  outs = {fresh(*v, v->dtype, v->sizes), norm};
  return true;
}
bool cross_entropy_of_bits(In in, Types& outs) {  // binary_cross_entropy(self, target, weight, reduction)
  const TensorType *x = tensor(in, 0), *y = tensor(in, 1);
  auto r = integer(arg(in, 3));
  if (!x || !y || !r || x->dtype != y->dtype || !is_floating(x->dtype) || !same_sizes(x->sizes, y->sizes)) return false;
  TensorType out;
  if (!fresh_like(*x, x->dtype, std::nullopt, out)) return false;
  return one(outs, *r == 0 ? out : fresh(*x, x->dtype, {}));
}
bool cross_entropy_of_bits_backward(In in, Types& outs) {  // (grad, self, target, weight, reduction): empty_like(self)
  const TensorType *x = tensor(in, 1), *y = tensor(in, 2);
  TensorType out;
  if (!x || !y || x->dtype != y->dtype || !is_floating(x->dtype) || !same_sizes(x->sizes, y->sizes)) return false;
  return fresh_like(*x, x->dtype, std::nullopt, out) && one(outs, out);
}
bool with_logits(In in, Types& outs) {  // (self, target, weight, pos_weight, reduction)
  const TensorType *x = tensor(in, 0), *y = tensor(in, 1);
  auto r = integer(arg(in, 4));
  if (!x || !y || !r || !is_floating(x->dtype) || !is_floating(y->dtype) || !same_sizes(x->sizes, y->sizes))
    return false;
  for (size_t i : {2, 3}) {
    const TensorType* w = tensor(in, i);
    const auto both = w ? broadcast(x->sizes, w->sizes) : x->sizes;
    if (!both || !same_sizes(*both, x->sizes) || (w && is_complex(w->dtype))) return false;
  }
  if (*r == 0 && (!contiguous(*x) || !contiguous(*y))) return false;
  return one(outs, fresh(*x, y->dtype, *r == 0 ? x->sizes : Sizes{}));  // written in place of 1 - target
}
bool nll_loss_2d(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *target = tensor(in, 1);
  auto r = integer(arg(in, 3));
  if (!x || !target || !r || x->rank() != 4 || !is_floating(x->dtype) || has_zero_size(*x)) return false;
  const Sizes places = {x->sizes[0], x->sizes[2], x->sizes[3]};
  if (!same_sizes(target->sizes, places) || !fits_classes(tensor(in, 2), x->sizes[1])) return false;
  outs = {fresh(*x, x->dtype, *r == 0 ? places : Sizes{}), fresh(*x, x->dtype, {})};
  return true;
}
// (self, size, fill_value). On the CPU alone: elsewhere the rows of the result are its columns in memory.
bool nonzero_static(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  const auto size = size_expr(arg(in, 1));
  if (!x || !size || x->device.type != DeviceType::kCPU || !sym::known_le(0, *size)) return false;
  return one(outs, fresh(*x, DType::kI64, {*size, static_cast<int64_t>(x->rank())}));
}
// How many there are of a square whose size is a symbol.
std::optional<Expr> triangle_count(In in, bool lower) {
  const auto rows = size_expr(arg(in, 0)), columns = size_expr(arg(in, 1));
  const auto offset = integer(arg(in, 2));
  if (!rows || !columns || !offset || rows->is_const() || !sym::known_eq(*rows, *columns)) return std::nullopt;
  const auto corner = [](Expr side) { return sym::floordiv(side * (side + 1), 2); };
  const int64_t below = lower ? *offset : *offset - 1;  // columns up to i + below
  const Expr side = below <= 0 ? *rows + below : *rows - below - 1;
  if (!sym::known_lt(0, side)) return std::nullopt;
  const Expr lower_part = below <= 0 ? corner(side) : *rows * *rows - corner(side);
  return lower ? lower_part : *rows * *rows - lower_part;
}
bool triangle_indices(In in, Types& outs, bool lower) {  // (row, col, offset, dtype, layout, device, pin_memory)
  if (const auto count = triangle_count(in, lower)) {
    TensorType like;
    if (auto* d = std::get_if<Device>(&arg(in, 5))) like.device = *d;
    return one(outs, fresh(like, dtype_of(arg(in, 3)).value_or(DType::kI64), {2, *count}));
  }
  auto rows = integer(arg(in, 0)), columns = integer(arg(in, 1)), offset = integer(arg(in, 2));
  if (!rows || !columns || !offset || *rows < 0 || *columns < 0 || *rows > (1 << 20)) return false;
  int64_t count = 0;
  for (int64_t i = 0; i < *rows; ++i) {
    int64_t below = std::min(std::max<int64_t>(i + *offset + 1, 0), *columns);  // columns up to i + offset
    int64_t before = std::min(std::max<int64_t>(i + *offset, 0), *columns);
    count += lower ? below : *columns - before;
  }
  TensorType like;
  if (auto* d = std::get_if<Device>(&arg(in, 5))) like.device = *d;
  return one(outs, fresh(like, dtype_of(arg(in, 3)).value_or(DType::kI64), {2, count}));
}
// (theta, size, align_corners): places of an image of that size, and what they tell of theta.
template <bool backward>
bool affine_grid(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  const auto size = size_list(arg(in, 1));
  if (!x || !size || (size->size() != 4 && size->size() != 5)) return false;
  const auto n = static_cast<int64_t>(size->size() - 2);
  Sizes sizes = {(*size)[0]};
  if (backward) {
    sizes.insert(sizes.end(), {Expr(n), Expr(n + 1)});
    TensorType out = fresh(*x, x->dtype, sizes);
    out.strides = {Expr(n * (n + 1)), Expr(1), Expr(n)};
    return one(outs, std::move(out));
  }
  if (x->rank() != 3 || !x->sizes[1].is_const(n) || !x->sizes[2].is_const(n + 1)) return false;
  if (!sym::known_eq(x->sizes[0], (*size)[0])) return false;
  sizes.insert(sizes.end(), size->begin() + 2, size->end());
  sizes.emplace_back(n);
  for (Expr e : sizes)
    if (!sym::known_lt(0, e)) return false;
  return one(outs, fresh(*x, x->dtype, sizes));
}
// (x1, x2, p, compute_mode)
bool cdist(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *y = tensor(in, 1);
  if (!x || !y || x->rank() < 2 || y->rank() < 2 || x->dtype != y->dtype || !is_floating(x->dtype)) return false;
  if (has_zero_size(*x) || has_zero_size(*y) || !sym::known_eq(x->sizes.back(), y->sizes.back())) return false;
  auto sizes = broadcast(Sizes(x->sizes.begin(), x->sizes.end() - 2), Sizes(y->sizes.begin(), y->sizes.end() - 2));
  if (!sizes) return false;
  sizes->push_back(x->sizes[x->rank() - 2]);
  sizes->push_back(y->sizes[y->rank() - 2]);
  return one(outs, fresh(*x, x->dtype, *sizes));
}
// (self, ...): the values, and which of them were within the range.
bool fake_quantize(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  TensorType values, mask;
  if (!x || !is_floating(x->dtype) || !fresh_like(*x, x->dtype, MemoryFormat::kPreserve, values) ||
      !fresh_like(*x, DType::kBool, MemoryFormat::kPreserve, mask))
    return false;
  outs = {std::move(values), std::move(mask)};
  return true;
}
bool tril_indices(In in, Types& outs) { return triangle_indices(in, outs, true); }
bool triu_indices(In in, Types& outs) { return triangle_indices(in, outs, false); }

}  // namespace

void add_rare(Table& t) {
  const auto kind = OpKind::kExtern;
  t.add("im2col.default", kind, im2col);
  t.add("col2im.default", kind, col2im);
  t.add("affine_grid_generator.default", kind, affine_grid<false>);
  t.add("affine_grid_generator_backward.default", kind, affine_grid<true>);
  t.add("_cdist_forward.default", kind, cdist);
  t.add("_euclidean_dist.default", kind, cdist);
  t.add("take.default", kind, take);
  t.add("renorm.default", kind, renorm);
  t.add("linalg_cross.default", kind, cross);
  t.add("histc.default", kind, histogram);
  t.add("linalg_eig.default", kind, eig);
  t.add("trace.default", kind, trace);
  t.add("addr.default", kind, addr);
  t.add("multinomial.default", OpKind::kRandom, multinomial).nondeterministic = true;
  t.add("_weight_norm_interface.default", kind, weight_norm);
  t.add("binary_cross_entropy.default", kind, cross_entropy_of_bits);
  t.add("binary_cross_entropy_backward.default", kind, cross_entropy_of_bits_backward);
  t.add("binary_cross_entropy_with_logits.default", kind, with_logits);
  t.add("nll_loss2d_forward.default", kind, nll_loss_2d);
  t.add("nonzero_static.default", OpKind::kExtern, nonzero_static);
  for (const char* name :
       {"fake_quantize_per_tensor_affine_cachemask.default", "fake_quantize_per_channel_affine_cachemask.default",
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default"})
    t.add(name, kind, fake_quantize);
  t.add("tril_indices.default", OpKind::kFactory, tril_indices);
  t.add("triu_indices.default", OpKind::kFactory, triu_indices);
}

}  // namespace flashover::ops::aten
