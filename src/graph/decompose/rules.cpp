// Reading of arguments as decompositions need them: numbers, dims, dtypes, dead results.
#include "graph/decompose/rules.h"

#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/aten/infer.h"
#include "ops/floats.h"
#include "ops/names.h"

namespace flashover::graph::rules {
namespace {
const Arg kNone{};
}

const Arg& arg(const Node& n, size_t i) { return i < n.args.size() ? n.args[i] : kNone; }
bool has(const Node& n, size_t i) {
  auto* r = std::get_if<Ref>(&arg(n, i));
  return r && r->id != kNoValue;
}
ValueId in(const Node& n, size_t i) {
  FLASHOVER_CHECK(has(n, i)) << n.op->name << ": argument " << i << " is no tensor";
  return std::get<Ref>(n.args[i]).id;
}
const TensorType& type(Builder& b, const Node& n, size_t i) { return b.type(in(n, i)); }

bool dead(const Node& n, size_t i) { return n.outs[i] == kNoValue; }
TensorType result(Builder& b, const Node& n, size_t i) {
  if (!dead(n, i)) return b.type(n.outs[i]);
  for (ValueId v : n.outs)
    if (v != kNoValue) return b.type(v);
  FLASHOVER_CHECK(false) << n.op->name << ": every result is dead";
  return {};
}

std::optional<int64_t> integer(const Arg& a) { return ops::aten::integer(a); }
std::optional<double> number(const Arg& a) { return ops::aten::number(a); }
bool flag(const Arg& a) { return ops::aten::flag(a); }
std::optional<Ints> integers(const Arg& a) { return ops::aten::integers(a); }
std::optional<Ints> spread(const Arg& a, size_t count) {
  auto v = integers(a);
  if (v && v->size() == 1) v->assign(count, (*v)[0]);
  if (!v || v->size() != count) return std::nullopt;
  return v;
}
std::optional<Ints> dims(Builder& b, const Arg& a, ValueId x, bool empty_is_all) {
  auto mask = ops::aten::dim_mask(a, b.rank(x), empty_is_all);
  if (!mask) return std::nullopt;
  Ints out;
  for (size_t d = 0; d < mask->size(); ++d)
    if ((*mask)[d]) out.push_back(static_cast<int64_t>(d));
  return out;
}

bool plain(DType d) {
  switch (d) {
    case DType::kU8:
    case DType::kI8:
    case DType::kI16:
    case DType::kI32:
    case DType::kI64:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64:
    case DType::kBool:
      return true;
    default:
      return false;
  }
}
DType math(DType d) { return is_reduced(d) ? DType::kF32 : d; }
bool is_int(DType d) { return is_integral(d); }

bool may_be_empty(Builder& b, ValueId x, const Ints& dims) {
  for (int64_t d : dims)
    if (!sym::known_lt(0, b.size(x, d))) return true;
  return false;
}

std::optional<Arg> scalar_in(const Arg& a, DType d) {
  if (std::holds_alternative<std::complex<double>>(a)) return std::nullopt;
  if (auto* e = std::get_if<sym::Expr>(&a); e && !e->is_const()) {
    if (d == DType::kI64) return a;
    return std::nullopt;
  }
  auto v = number(a);
  if (!v) return std::nullopt;
  if (d == DType::kBool) return Arg(*v != 0);
  if (is_floating(d)) {
    double top = d == DType::kF16    ? 65504.0
                 : d == DType::kBF16 ? 3.3895313892515355e38
                 : d == DType::kF32  ? static_cast<double>(std::numeric_limits<float>::max())
                                     : std::numeric_limits<double>::max();
    if (std::isfinite(*v) && std::fabs(*v) > top) return std::nullopt;
    return Arg(*v);
  }
  if (!is_int(d) || !std::isfinite(*v)) return std::nullopt;
  int bits = info(d).bytes * 8;
  double low = info(d).is_signed ? -std::ldexp(1.0, bits - 1) : 0.0;
  double high = std::ldexp(1.0, info(d).is_signed ? bits - 1 : bits);
  const double t = std::trunc(*v);
  // Eager compares the number itself with the limits: -0.1 overflows an unsigned integer, 127.5 a signed byte.
  if (*v < low || *v > high - 1 || t >= high) return std::nullopt;
  auto exact = integer(a);
  return Arg(sym::Expr(exact ? *exact : static_cast<int64_t>(t)));
}
bool scalar_fits(const Arg& a, DType d) {
  if (!ops::aten::is_scalar(a)) return true;
  return scalar_in(a, d).has_value();
}

ValueId constant(Builder& b, ValueId like, double v) {
  DType d = b.dtype(like);
  auto a = scalar_in(v, d);
  FLASHOVER_CHECK(a) << "constant " << v << " does not fit " << info(d).name;
  return b.full({}, *a, d, Device(b.type(like).device));
}

ValueId number_of(Builder& b, ValueId like, sym::Expr count) {
  if (count.is_const()) return constant(b, like, static_cast<double>(count.value()));
  return b.full({}, count, b.dtype(like), Device(b.type(like).device));
}

ValueId ratio(Builder& b, ValueId like, sym::Expr over, sym::Expr under) {
  if (over.is_const() && under.is_const())
    return constant(b, like, static_cast<double>(over.value()) / static_cast<double>(under.value()));
  return b.div(number_of(b, like, over), number_of(b, like, under));
}

std::optional<sym::Expr> size_at(Builder& b, const Node& n, size_t i) {
  if (!has(n, i) || b.rank(in(n, i)) != 0) return std::nullopt;
  const auto& nodes = b.graph().nodes;
  for (auto made = nodes.rbegin(); made != nodes.rend(); ++made) {
    if (made->outs.size() != 1 || made->outs[0] != in(n, i)) continue;
    const auto* e = made->op->prim == Prim::full ? std::get_if<sym::Expr>(&made->args[1]) : nullptr;
    return e && !e->is_const() ? std::optional(*e) : std::nullopt;
  }
  return std::nullopt;
}

ValueId operand(Builder& b, const Node& n, size_t i, DType d) {
  if (has(n, i)) {
    // Integers meet 16-bit floats as such: eager converts them before the kernel reads them.
    const DType to = result(b, n).dtype;
    const ValueId x = in(n, i);
    if (d == DType::kF32 && is_reduced(to) && is_int(b.dtype(x)) && b.rank(x) > 0)
      return b.convert(b.convert(x, to), d);
    return b.convert(x, d);
  }
  auto a = scalar_in(arg(n, i), d);
  FLASHOVER_CHECK(a) << n.op->name << ": number " << i << " does not fit " << info(d).name;
  return b.full({}, *a, d, result(b, n).device);
}
ValueId operand_via(Builder& b, const Node& n, size_t i, DType common, DType d) {
  return b.convert(operand(b, n, i, common), d);
}

DType common_dtype(Builder& b, const Node& n, std::initializer_list<size_t> at) {
  ops::aten::Promotion p(DType::kF32);
  for (size_t i : at) {
    if (is_none(arg(n, i))) continue;
    if (has(n, i))
      p.add(type(b, n, i));
    else if (auto d = ops::aten::scalar_dtype(arg(n, i)))
      p.add_number(*d);
    else
      return DType::kUndefined;
  }
  DType d = p.result();
  return plain(d) ? d : DType::kUndefined;
}

Moments moments(Builder& b, ValueId x, const Ints& over) {
  const ValueId count = number_of(b, x, b.count(x, over));
  Moments m;
  const ValueId first = b.div(b.sum(x, over, true), count);
  m.off = b.sub(x, first);
  const ValueId rest = b.sum(m.off, over, true);
  m.shift = b.div(rest, count);
  m.mean = b.add(first, m.shift);
  // (What rounding left is small beside the squares also where both are past the largest number.)
  const double largest =
      b.dtype(x) == DType::kF64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
  const ValueId left = b.minimum(b.mul(rest, m.shift), constant(b, x, largest));
  m.squares = b.maximum(b.sub(b.sum(b.mul(m.off, m.off), over, true), left), constant(b, x, 0));
  return m;
}

bool done(Builder& b, ValueId v, DType d, Outs& outs) {
  outs = {b.convert(v, d)};
  return true;
}

bool taken(DType d, Takes takes) {
  switch (takes) {
    case Takes::kNumbers:
      return d != DType::kBool;
    case Takes::kFloats:
      return is_floating(d);
    case Takes::kWhole:
      return !is_floating(d);
    default:
      return true;
  }
}
bool plain_node(Builder& b, const Node& n) {
  bool ok = true;
  const bool casts = n.op->name == op::_to_copy && result(b, n).device.type == DeviceType::kCUDA;
  auto check = [&](ValueId v) {
    const DType d = b.type(v).dtype;
    ok &= (plain(d) || (casts && is_eight_bit_float(d))) && !b.type(v).opaque;
  };
  for (const Arg& a : n.args) for_each_ref(a, check);
  for (ValueId v : n.outs)
    if (v != kNoValue) check(v);
  return ok;
}

}  // namespace flashover::graph::rules
