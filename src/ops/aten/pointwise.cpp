// Pointwise operators: TensorIterator over the operands after type promotion.
#include "ops/aten/infer.h"

namespace flashover::ops::aten {
namespace {

enum Allowed : int { kB = 1, kI = 2, kF = 4, kC = 8, kReal = kB | kI | kF, kAny = kReal | kC, kNumber = kI | kF | kC };
enum class Result { kKeep, kFloat, kBool };  // the common dtype; integers become the default float; bool

int category(DType d) {
  if (d == DType::kBool) return kB;
  if (is_integral(d)) return kI;
  if (is_complex(d)) return kC;
  return is_floating(d) ? kF : 0;
}

// Promotion over operands and numbers alike, then the iterator. `operands` are the tensors that the kernel reads.
bool promoted(In in, std::span<const TensorType* const> operands, DType common, int allowed, Result r, Types& outs) {
  if (common == DType::kUndefined) return false;
  if (r == Result::kFloat && is_integral_or_bool(common)) common = in.default_dtype;
  if (!(category(common) & allowed)) return false;
  return iterate_promoted(operands, common, r == Result::kBool ? DType::kBool : common, outs);
}

template <int allowed, Result r>
bool unary(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  if (!x || !(category(x->dtype) & allowed)) return false;
  DType common = r == Result::kFloat && is_integral_or_bool(x->dtype) ? in.default_dtype : x->dtype;
  // Predicates read any dtype as it is.
  return iterate_promoted({&x, 1}, common, r == Result::kBool ? DType::kBool : common, outs);
}

bool abs(In in, Types& outs) {
  if (!unary<kAny & ~kB, Result::kKeep>(in, outs)) return false;
  if (!is_complex(outs[0].dtype)) return true;
  const auto strides = preserved_strides(*tensor(in, 0));  // complex: empty_like, then the iterator over it
  if (!strides) return false;
  outs[0].dtype = to_real(outs[0].dtype);
  outs[0].strides = *strides;
  return true;
}

bool angle(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  if (x && is_complex(x->dtype)) {  // the real part of a complex result, copied into new memory (torch's meta differs)
    outs.push_back(fresh(*x, to_real(x->dtype), x->sizes));
    return true;
  }
  return unary<kAny, Result::kFloat>(in, outs);
}

template <int allowed, Result r, int a = 0, int b = 1>
bool binary(In in, Types& outs) {
  TensorType sx, sy;
  const TensorType* x = operand(in, a, sx);
  const TensorType* y = operand(in, b, sy);
  if (!x || !y) return false;
  Promotion p(in.default_dtype);
  p.add(*x);
  p.add(*y);
  const TensorType* both[] = {x, y};
  return promoted(in, both, p.result(), allowed, r, outs);
}

// Booleans may be added and multiplied but not with an alpha that is no bool; eager words that error.
bool add(In in, Types& outs) {
  if (!binary<kAny, Result::kKeep>(in, outs)) return false;
  const Arg& alpha = arg(in, 2);
  auto d = scalar_dtype(alpha);
  if (is_none(alpha) || !d) return true;
  DType out = outs[0].dtype;
  if (is_complex(*d)) return is_complex(out);
  if (*d == DType::kF64) return is_floating(out) || is_complex(out);
  return true;
}
bool sub(In in, Types& outs) {
  TensorType sx, sy;
  const TensorType* x = operand(in, 0, sx);
  const TensorType* y = operand(in, 1, sy);
  if (!x || !y || x->dtype == DType::kBool || y->dtype == DType::kBool) return false;
  return add(in, outs);
}
// other - self: the order of the operands decides between layouts.
bool rsub(In in, Types& outs) {
  TensorType ignored;
  const TensorType* y = operand(in, 1, ignored);
  if (!sub(in, outs)) return false;
  outs.clear();
  return y && binary<kAny, Result::kKeep, 1, 0>(in, outs);
}

bool div_mode(In in, Types& outs) {
  if (is_none(arg(in, 2))) return binary<kAny, Result::kFloat>(in, outs);
  return binary<kReal, Result::kKeep>(in, outs);
}

// The base is copied to the common dtype; a scalar exponent never adds a dimension.
bool pow_tensor_scalar(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto d = scalar_dtype(arg(in, 1));
  TensorType scratch;
  const TensorType* known_late = d ? nullptr : operand(in, 1, scratch);
  if (!x || (!d && !(known_late && known_late->wrapped_number))) return false;
  Promotion p(in.default_dtype);
  p.add(*x);
  d ? p.add_number(*d) : p.add(*known_late);
  if (p.result() == DType::kBool || (!d && !is_floating(p.result()))) return false;
  auto e = number(arg(in, 1));
  if (is_integral(p.result()) && e && *e < 0) return false;
  return promoted(in, {&x, 1}, p.result(), kAny, Result::kKeep, outs);
}
bool pow_scalar(In in, Types& outs) {
  const TensorType* x = tensor(in, 1);
  TensorType scratch;
  const TensorType* base = operand(in, 0, scratch);  // a number, perhaps one that is known when it runs
  if (!x || !base || !base->wrapped_number) return false;
  Promotion p(in.default_dtype);
  p.add(*x);
  p.add(*base);
  if (p.result() == DType::kUndefined || p.result() == DType::kBool) return false;
  return one(outs, fresh(*x, p.result(), x->sizes));
}

bool clamp(In in, Types& outs) {  // also clamp_min and clamp_max with one number
  const TensorType* x = tensor(in, 0);
  if (!x) return false;
  Promotion p(in.default_dtype);
  p.add(*x);
  bool bounded = false;
  for (size_t i = 1; i < std::min<size_t>(in.args.size(), 3); ++i) {
    if (is_none(in.args[i])) continue;
    TensorType scratch;
    const TensorType* bound = operand(in, i, scratch);
    if (!bound || !bound->wrapped_number) return false;
    p.add(*bound);
    bounded = true;
  }
  if (!bounded || p.result() == DType::kBool) return false;
  return promoted(in, {&x, 1}, p.result(), kReal, Result::kKeep, outs);
}

bool clamp_tensor(In in, Types& outs) {
  std::array<TensorType, 3> scratch;
  std::array<const TensorType*, 3> operands{};
  size_t n = 0;
  Promotion p(in.default_dtype);
  for (size_t i = 0; i < std::min<size_t>(in.args.size(), 3); ++i) {
    if (is_none(in.args[i])) continue;
    operands[n] = operand(in, i, scratch[n]);
    if (!operands[n]) return false;
    p.add(*operands[n++]);
  }
  if (n < 2 || p.result() == DType::kBool) return false;
  return promoted(in, {operands.data(), n}, p.result(), kReal, Result::kKeep, outs);
}

template <int allowed>
bool ternary(In in, Types& outs) {  // addcmul, addcdiv
  std::array<TensorType, 3> scratch;
  std::array<const TensorType*, 3> operands{};
  Promotion p(in.default_dtype);
  for (size_t i = 0; i < 3; ++i) {
    operands[i] = operand(in, i, scratch[i]);
    if (!operands[i]) return false;
    p.add(*operands[i]);
  }
  return promoted(in, operands, p.result(), allowed, Result::kKeep, outs);
}

// empty_like(self), then written.
template <int allowed>
bool into_empty_like(In in, Types& outs) {
  if (!unary<allowed, Result::kKeep>(in, outs)) return false;
  const auto strides = preserved_strides(*tensor(in, 0));
  if (!strides) return false;
  outs.back().strides = *strides;
  return true;
}

bool lerp_scalar(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *y = tensor(in, 1);
  if (!x || !y || x->dtype != y->dtype) return false;
  const TensorType* both[] = {x, y};
  return promoted(in, both, x->dtype, kF | kC, Result::kKeep, outs);
}
bool lerp_tensor(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *y = tensor(in, 1), *w = tensor(in, 2);
  if (!x || !y || !w || x->dtype != y->dtype || x->dtype != w->dtype) return false;
  const TensorType* all[] = {x, y, w};
  return promoted(in, all, x->dtype, kF | kC, Result::kKeep, outs);
}

bool where(In in, Types& outs) {
  TensorType sx, sy;
  const TensorType* c = tensor(in, 0);
  const TensorType* x = operand(in, 1, sx);
  const TensorType* y = operand(in, 2, sy);
  if (!c || !x || !y || (c->dtype != DType::kBool && c->dtype != DType::kU8)) return false;
  Promotion p(in.default_dtype);
  p.add(*x);
  p.add(*y);
  DType common = p.result();
  std::array<TensorType, 2> copies;
  const TensorType* operands[] = {c, x, y};
  for (size_t i = 0; i < 2; ++i) {
    const TensorType* t = operands[i + 1];
    if (t->dtype == common || t->rank() == 0) continue;
    if (!fresh_like(*t, common, std::nullopt, copies[i])) return false;
    operands[i + 1] = &copies[i];
  }
  TensorType out;
  out.dtype = common;
  out.device = c->device;
  return common != DType::kUndefined && iterate(operands, out) && one(outs, std::move(out));
}

// Expanded to the common size, cloned contiguous, filled.
bool masked_fill(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *mask = tensor(in, 1);
  if (!x || !mask || mask->dtype != DType::kBool) return false;
  if (const TensorType* v = tensor(in, 2); v && (v->rank() != 0 || !can_cast(v->dtype, x->dtype))) return false;
  if (auto d = scalar_dtype(arg(in, 2)); d && is_complex(*d) && !is_complex(x->dtype)) return false;
  auto sizes = broadcast(x->sizes, mask->sizes);
  return sizes && one(outs, fresh(*x, x->dtype, *sizes));
}

bool glu(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto dim = integer(arg(in, 1));
  if (!x || !dim || x->rank() == 0 || !is_floating(x->dtype)) return false;
  auto d = wrap_dim(*dim, x->rank());
  if (!d || !sym::known_divisible(x->sizes[*d], 2)) return false;
  TensorType half = *x;
  half.sizes[*d] = sym::floordiv(x->sizes[*d], 2);
  const TensorType* both[] = {&half, &half};
  return promoted(in, both, x->dtype, kF, Result::kKeep, outs);
}

bool prelu(In in, Types& outs) {  // empty_like(self), then the iterator over it
  const TensorType *x = tensor(in, 0), *w = tensor(in, 1);
  TensorType out;
  if (!x || !w || x->dtype != w->dtype || !is_floating(x->dtype)) return false;
  auto sizes = broadcast(x->sizes, w->sizes);
  if (!sizes || !same_sizes(*sizes, x->sizes)) return false;
  return fresh_like(*x, x->dtype, std::nullopt, out) && one(outs, std::move(out));
}

bool log_sigmoid_forward(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  if (!x || !is_floating(x->dtype)) return false;
  outs = {fresh(*x, x->dtype, x->sizes), fresh(*x, x->dtype, x->sizes)};
  return true;
}

bool complex_of(In in, Types& outs) {
  if (!lerp_scalar(in, outs)) return false;
  outs[0].dtype = to_complex(outs[0].dtype);
  return outs[0].dtype != DType::kUndefined;
}

// copy of an activation gradient: grad and saved tensor of one dtype
template <int a, int b>
bool pair(In in, Types& outs) {
  const TensorType *x = tensor(in, a), *y = tensor(in, b);
  if (!x || !y || x->dtype != y->dtype) return false;
  const TensorType* both[] = {x, y};
  return promoted(in, both, x->dtype, kF, Result::kKeep, outs);
}

}  // namespace

void add_pointwise(Table& t) {
  auto with_inplace = [&]<InferRule F, bool casts = true>(std::initializer_list<const char*> names) {
    for (const char* name : names) {
      add_with_inplace<F>(t, name, "default");
      add_out<F, casts>(t, name, "default", "out", 1);
    }
  };
  // Math on floats; integers come out as the default float.
  with_inplace.operator()<unary<kAny, Result::kFloat>>(
      {"exp",  "log",  "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin",   "cos",     "tan",
       "asin", "acos", "atan", "sinh",  "cosh",  "tanh", "asinh", "acosh",      "atanh", "sigmoid", "expm1"});
  with_inplace.operator()<unary<kReal, Result::kFloat>>(
      {"exp2", "erf", "erfc", "erfinv", "lgamma", "digamma", "i0", "sinc"});
  for (const char* name : {"special_entr", "special_erfcx", "special_i0", "special_i0e", "special_i1", "special_i1e",
                           "special_ndtri", "special_log_ndtr"})
    t.add(std::string(name) + ".default", OpKind::kPointwise, unary<kReal, Result::kFloat>);
  with_inplace.operator()<unary<kI | kF | kC, Result::kKeep>, false>({"neg"});
  with_inplace.operator()<unary<kI | kF, Result::kKeep>, false>({"ceil", "floor", "round", "trunc"});
  with_inplace.operator()<unary<kF, Result::kKeep>, false>({"frac"});
  with_inplace.operator()<unary<kReal, Result::kKeep>, false>({"sign"});
  with_inplace.operator()<unary<kAny, Result::kKeep>, false>({"sgn"});
  with_inplace.operator()<abs, false>({"abs"});
  t.add("angle.default", OpKind::kPointwise, angle);
  add_with_inplace<unary<kI | kF, Result::kKeep>>(t, "round", "decimals");
  with_inplace.operator()<unary<kB | kI, Result::kKeep>, false>({"bitwise_not"});
  with_inplace.operator()<unary<kAny, Result::kBool>>({"logical_not"});
  for (const char* name : {"isnan", "isinf"})
    t.add(std::string(name) + ".default", OpKind::kPointwise, unary<kAny, Result::kBool>);
  for (const char* name : {"signbit", "isneginf", "isposinf"})
    t.add(std::string(name) + ".default", OpKind::kPointwise, unary<kReal, Result::kBool>);
  add_with_inplace<into_empty_like<kAny>>(t, "nan_to_num", "default");
  add_with_inplace<unary<kReal, Result::kFloat>>(t, "logit", "default");
  // Activations.
  with_inplace.operator()<unary<kI | kF, Result::kKeep>, false>({"relu"});
  for (const char* name : {"leaky_relu", "elu", "hardsigmoid", "hardswish", "silu", "mish", "gelu"})
    add_with_inplace<unary<kF, Result::kKeep>>(t, name, "default");
  for (const char* name : {"softplus", "softshrink", "hardshrink"})
    t.add(std::string(name) + ".default", OpKind::kPointwise, unary<kF, Result::kKeep>);
  for (const char* name : {"celu", "selu", "relu6"}) add_with_inplace<unary<kF, Result::kKeep>>(t, name, "default");
  add_with_inplace<into_empty_like<kI | kF>>(t, "hardtanh", "default");
  add_with_inplace<unary<kI | kF, Result::kKeep>>(t, "threshold", "default");
  t.add("glu.default", OpKind::kIndex, glu);
  t.add("_prelu_kernel.default", OpKind::kPointwise, prelu);
  t.add("log_sigmoid_forward.default", OpKind::kPointwise, log_sigmoid_forward);

  // Arithmetic.
  add_with_inplace<add>(t, "add", "Tensor");
  add_with_inplace<add>(t, "add", "Scalar");
  add_with_inplace<sub>(t, "sub", "Tensor");
  add_with_inplace<sub>(t, "sub", "Scalar");
  t.add("rsub.Tensor", OpKind::kPointwise, rsub);
  t.add("rsub.Scalar", OpKind::kPointwise, sub);
  add_out<add, true>(t, "add", "Tensor", "out", 3);
  add_out<sub, true>(t, "sub", "Tensor", "out", 3);
  auto arithmetic = [&]<InferRule F>(std::initializer_list<std::pair<const char*, const char*>> names) {
    for (auto [name, overload] : names) add_with_inplace<F>(t, name, overload);
  };
  arithmetic.operator()<binary<kAny, Result::kKeep>>({{"mul", "Tensor"}, {"mul", "Scalar"}});
  arithmetic.operator()<binary<kAny, Result::kFloat>>({{"div", "Tensor"}, {"div", "Scalar"}});
  arithmetic.operator()<div_mode>({{"div", "Tensor_mode"}, {"div", "Scalar_mode"}});
  arithmetic.operator()<binary<kI | kF, Result::kKeep>>({{"remainder", "Tensor"},
                                                         {"remainder", "Scalar"},
                                                         {"fmod", "Tensor"},
                                                         {"fmod", "Scalar"},
                                                         {"floor_divide", "Scalar"},
                                                         {"gcd", "default"},
                                                         {"lcm", "default"}});
  t.add("floor_divide.default", OpKind::kPointwise, binary<kI | kF, Result::kKeep>);
  add_inplace<binary<kI | kF, Result::kKeep>>(t, "floor_divide_.Tensor", "floor_divide.default");
  t.add("remainder.Scalar_Tensor", OpKind::kPointwise, binary<kI | kF, Result::kKeep>);
  t.add("pow.Tensor_Tensor", OpKind::kPointwise, binary<kNumber, Result::kKeep>);
  t.add("pow.Tensor_Scalar", OpKind::kPointwise, pow_tensor_scalar);
  t.add("pow.Scalar", OpKind::kPointwise, pow_scalar);
  // Not what the other names suggest: pow.Scalar has the number for its base.
  add_inplace<pow_tensor_scalar>(t, "pow_.Scalar", "pow.Tensor_Scalar");
  add_inplace<binary<kNumber, Result::kKeep>>(t, "pow_.Tensor", "pow.Tensor_Tensor");
  add_out<binary<kAny, Result::kKeep>, true>(t, "mul", "Tensor", "out", 2);
  add_out<binary<kAny, Result::kFloat>, true>(t, "div", "Tensor", "out", 2);
  arithmetic.operator()<binary<kReal, Result::kFloat>>({{"atan2", "default"},
                                                        {"copysign", "Tensor"},
                                                        {"copysign", "Scalar"},
                                                        {"xlogy", "Tensor"},
                                                        {"xlogy", "Scalar_Other"}});
  for (const char* name : {"xlogy.Scalar_Self", "special_xlog1py.default", "special_xlog1py.other_scalar",
                           "special_xlog1py.self_scalar", "special_zeta.default"})
    t.add(name, OpKind::kPointwise, binary<kReal, Result::kFloat>);
  arithmetic.operator()<binary<kF, Result::kKeep>>({{"hypot", "default"}, {"nextafter", "default"}});
  for (const char* name : {"logaddexp", "logaddexp2"})
    t.add(std::string(name) + ".default", OpKind::kPointwise, binary<kF, Result::kKeep>);
  arithmetic.operator()<binary<kReal, Result::kKeep>>({{"heaviside", "default"}});
  for (const char* name : {"maximum", "minimum", "fmax", "fmin"}) {
    t.add(std::string(name) + ".default", OpKind::kPointwise, binary<kReal, Result::kKeep>);
    add_out<binary<kReal, Result::kKeep>, true>(t, name, "default", "out", 2);
  }
  for (const char* name : {"bitwise_and", "bitwise_or", "bitwise_xor"}) {
    add_with_inplace<binary<kB | kI, Result::kKeep>>(t, name, "Tensor");
    add_with_inplace<binary<kB | kI, Result::kKeep>>(t, name, "Scalar");
    t.add(std::string(name) + ".Scalar_Tensor", OpKind::kPointwise, binary<kB | kI, Result::kKeep>);
  }
  for (const char* name : {"bitwise_left_shift", "bitwise_right_shift"}) {
    add_with_inplace<binary<kI, Result::kKeep>>(t, name, "Tensor");
    add_with_inplace<binary<kI, Result::kKeep>>(t, name, "Tensor_Scalar");
    t.add(std::string(name) + ".Scalar_Tensor", OpKind::kPointwise, binary<kI, Result::kKeep>);
  }
  for (const char* name : {"__lshift__", "__rshift__"})
    for (const char* overload : {".Tensor", ".Scalar"})
      t.add(std::string(name) + overload, OpKind::kPointwise, binary<kI, Result::kKeep>);
  for (const char* name : {"eq", "ne"}) {
    add_with_inplace<binary<kAny, Result::kBool>>(t, name, "Tensor");
    add_with_inplace<binary<kAny, Result::kBool>>(t, name, "Scalar");
  }
  for (const char* name : {"lt", "le", "gt", "ge"}) {
    add_with_inplace<binary<kReal, Result::kBool>>(t, name, "Tensor");
    add_with_inplace<binary<kReal, Result::kBool>>(t, name, "Scalar");
  }
  for (const char* name : {"logical_and", "logical_or", "logical_xor"})
    add_with_inplace<binary<kAny, Result::kBool>>(t, name, "default");

  // Bounds, selection, three operands.
  for (const char* name : {"clamp", "clamp_min", "clamp_max"}) {
    add_with_inplace<clamp>(t, name, "default");
    add_with_inplace<clamp_tensor>(t, name, "Tensor");
  }
  add_with_inplace<ternary<kAny>>(t, "addcmul", "default");
  add_with_inplace<ternary<kF | kC>>(t, "addcdiv", "default");
  add_with_inplace<lerp_scalar>(t, "lerp", "Scalar");
  add_with_inplace<lerp_tensor>(t, "lerp", "Tensor");
  t.add("where.self", OpKind::kPointwise, where);
  for (const char* name : {"where.ScalarOther", "where.ScalarSelf", "where.Scalar"})
    t.add(name, OpKind::kPointwise, where);
  add_with_inplace<masked_fill>(t, "masked_fill", "Scalar");
  add_with_inplace<masked_fill>(t, "masked_fill", "Tensor");
  t.add("complex.default", OpKind::kPointwise, complex_of);
  t.add("polar.default", OpKind::kPointwise, complex_of);

  // Gradients that are pointwise in (grad, saved).
  for (const char* name : {"sigmoid_backward", "tanh_backward", "gelu_backward", "silu_backward", "mish_backward",
                           "hardsigmoid_backward", "hardswish_backward", "hardtanh_backward", "softplus_backward",
                           "softshrink_backward", "hardshrink_backward", "logit_backward"})
    t.add(std::string(name) + ".default", OpKind::kPointwise, pair<0, 1>);
  for (const char* name : {"threshold_backward", "leaky_relu_backward"})  // the order decides between layouts
    t.add(std::string(name) + ".default", OpKind::kPointwise, pair<1, 0>);
  t.add("elu_backward.default", OpKind::kPointwise, pair<0, 5>);
}

}  // namespace flashover::ops::aten
