#include "graph/passes/known.h"

#include <cmath>
#include <cstring>

#include "ops/args.h"

namespace flashover::graph {
namespace {

using Array = std::shared_ptr<KnownArray>;

int64_t count(const std::vector<int64_t>& sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}
std::optional<std::vector<int64_t>> const_sizes(const Sizes& sizes) {
  std::vector<int64_t> out;
  for (sym::Expr e : sizes) {
    if (!e.is_const()) return std::nullopt;
    out.push_back(e.value());
  }
  return out;
}

// out[i...] = x[origin + sum of index * stride], strides into x's row-major data.
Array gather(const KnownArray& x, std::vector<int64_t> sizes, const std::vector<int64_t>& strides, int64_t origin) {
  auto out = std::make_shared<KnownArray>();
  const int64_t n = count(sizes);
  out->data.resize(n);
  std::vector<int64_t> index(sizes.size(), 0);
  int64_t at = origin;
  for (int64_t k = 0; k < n; ++k) {
    out->data[k] = x.data[at];
    for (size_t d = sizes.size(); d-- > 0;) {
      at += strides[d];
      if (++index[d] < sizes[d]) break;
      at -= strides[d] * sizes[d];
      index[d] = 0;
    }
  }
  out->sizes = std::move(sizes);
  return out;
}
std::vector<int64_t> row_major(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d];
  return strides;
}

using Unary = double (*)(double);
using Binary = double (*)(double, double);
struct UnaryRow {
  std::string_view op;
  Unary f;
};
struct BinaryRow {
  std::string_view op;
  Binary f;
};
constexpr UnaryRow kUnary[] = {
    {"prim.neg", [](double x) { return -x; }},
    {"prim.abs", [](double x) { return std::fabs(x); }},
    {"prim.floor", [](double x) { return std::floor(x); }},
    {"prim.ceil", [](double x) { return std::ceil(x); }},
    {"prim.relu", [](double x) { return x < 0 ? 0 : x; }},
    {"prim.logical_not", [](double x) { return x == 0 ? 1.0 : 0.0; }},
    {"prim.isnan", [](double x) { return std::isnan(x) ? 1.0 : 0.0; }},
    {"prim.isinf", [](double x) { return std::isinf(x) ? 1.0 : 0.0; }},
    {"prim.copy", [](double x) { return x; }},
};
constexpr BinaryRow kBinary[] = {
    {"prim.add", [](double a, double b) { return a + b; }},
    {"prim.sub", [](double a, double b) { return a - b; }},
    {"prim.mul", [](double a, double b) { return a * b; }},
    {"prim.minimum", [](double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b); }},
    {"prim.maximum", [](double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b); }},
    {"prim.eq", [](double a, double b) { return a == b ? 1.0 : 0.0; }},
    {"prim.ne", [](double a, double b) { return a != b ? 1.0 : 0.0; }},
    {"prim.lt", [](double a, double b) { return a < b ? 1.0 : 0.0; }},
    {"prim.le", [](double a, double b) { return a <= b ? 1.0 : 0.0; }},
    {"prim.gt", [](double a, double b) { return a > b ? 1.0 : 0.0; }},
    {"prim.ge", [](double a, double b) { return a >= b ? 1.0 : 0.0; }},
};
// On bool operands only.
constexpr BinaryRow kLogic[] = {
    {"prim.bitwise_and", [](double a, double b) { return a != 0 && b != 0 ? 1.0 : 0.0; }},
    {"prim.bitwise_or", [](double a, double b) { return a != 0 || b != 0 ? 1.0 : 0.0; }},
    {"prim.bitwise_xor", [](double a, double b) { return (a != 0) != (b != 0) ? 1.0 : 0.0; }},
};

template <size_t N, typename Row>
const Row* find_row(const Row (&rows)[N], std::string_view op) {
  for (const Row& row : rows)
    if (row.op == op) return &row;
  return nullptr;
}

// Doubles hold these exactly; wrapping of integer overflow is not modelled, so results beyond 2^53 are given up.
bool representable(DType d) {
  switch (d) {
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
    case DType::kI16:
    case DType::kI32:
    case DType::kI64:
    case DType::kF32:
    case DType::kF64:
    case DType::kF16:
    case DType::kBF16:
      return true;
    default:
      return false;
  }
}
bool fits(DType d, double x) {
  if (is_floating(d) || d == DType::kBool) return true;
  const int bits = info(d).bytes * 8 - (info(d).is_signed ? 1 : 0);
  const double limit = bits >= 53 ? 9007199254740992.0 : std::ldexp(1.0, bits);
  return x < limit && x >= (info(d).is_signed ? -limit : 0.0);
}

std::optional<double> scalar(const Arg& a) {
  if (const auto* d = std::get_if<double>(&a)) return *d;
  if (const auto* b = std::get_if<bool>(&a)) return *b ? 1.0 : 0.0;
  if (const auto* e = std::get_if<sym::Expr>(&a); e && e->is_const() && std::abs(e->value()) < (int64_t{1} << 53))
    return static_cast<double>(e->value());
  return std::nullopt;
}

}  // namespace

double round_to(DType dtype, double x) {
  switch (dtype) {
    case DType::kF64:
      return x;
    case DType::kF32:
      return static_cast<double>(static_cast<float>(x));
    case DType::kBool:
      return x != 0 ? 1.0 : 0.0;
    case DType::kBF16:
    case DType::kF16: {
      if (std::isnan(x) || std::isinf(x) || x == 0) return x;
      // Round to the format's number of mantissa bits (7 or 10 after the leading one), half to even, from float as ATen
      // does.
      const double f = static_cast<double>(static_cast<float>(x));
      const int digits = dtype == DType::kBF16 ? 8 : 11, min_exponent = dtype == DType::kBF16 ? -125 : -13;
      if (std::isinf(f)) return f;
      int e = 0;
      std::frexp(f, &e);
      const int shift = digits - std::max(e, min_exponent);
      const double r = std::ldexp(std::nearbyint(std::ldexp(f, shift)), -shift);
      const double largest = dtype == DType::kBF16 ? 3.3895313892515355e38 : 65504.0;
      return std::fabs(r) > largest ? std::copysign(INFINITY, r) : r;
    }
    default:
      return std::trunc(x);
  }
}

Known::Known(const Graph& g)
    : g_(g), producer_(g.values.size(), -1), state_(g.values.size(), 0), arrays_(g.values.size()) {
  for (size_t i = 0; i < g.nodes.size(); ++i)
    for (ValueId v : g.nodes[i].outs)
      if (v != kNoValue) producer_[v] = static_cast<int32_t>(i);
}

std::shared_ptr<const KnownArray> Known::operator[](ValueId v) {
  if (state_[v] == 0) {
    state_[v] = 1;
    if (producer_[v] >= 0) {
      const Node& n = g_.nodes[producer_[v]];
      if (n.op->is_prim && n.outs.size() == 1 && representable(g_.type(v).dtype)) arrays_[v] = compute(n, v);
    }
  }
  return arrays_[v];
}

std::shared_ptr<const KnownArray> Known::compute(const Node& n, ValueId v) {
  const std::string_view op = n.op->name;
  const TensorType& type = g_.type(v);
  const auto sizes = const_sizes(type.sizes);
  if (!sizes || count(*sizes) == 0) return nullptr;
  int64_t total = count(*sizes);  // elements to compute
  auto pay = [&] { return (budget_ -= total) >= 0; };

  if (op == "prim.full") {
    const auto x = scalar(n.args[1]);
    if (!x) return nullptr;
    return std::make_shared<KnownArray>(KnownArray{*sizes, {round_to(type.dtype, *x)}});
  }
  if (op == "prim.iota") {
    const auto start = scalar(n.args[1]), step = scalar(n.args[2]);
    if (!start || !step || is_floating(type.dtype) || !pay()) return nullptr;
    auto out = std::make_shared<KnownArray>();
    out->sizes = *sizes;
    for (int64_t i = 0; i < total; ++i) out->data.push_back(*start + static_cast<double>(i) * *step);
    return out;
  }

  // Everything else has operands; all of them must be known.
  std::vector<std::shared_ptr<const KnownArray>> in;
  bool known = true;
  for (const Arg& a : n.args)
    for_each_ref(a, [&](ValueId x) {
      if (known) in.push_back((*this)[x]);
      known = known && in.back() != nullptr;
    });
  if (!known || in.empty()) return nullptr;
  bool uniform = true;
  for (const auto& x : in) uniform = uniform && x->is_uniform();
  if (uniform) total = 1;
  if (!pay()) return nullptr;
  const DType from = g_.type(ops::as_value(n.args[0])).dtype;
  auto map = [&](auto&& f) -> std::shared_ptr<const KnownArray> {
    auto out = std::make_shared<KnownArray>();
    out->sizes = *sizes;
    out->data.resize(total);
    for (int64_t i = 0; i < total; ++i) {
      const double x = f(i);
      if (!is_floating(type.dtype) && (std::isnan(x) || !fits(type.dtype, x))) return nullptr;
      out->data[i] = round_to(type.dtype, x);
    }
    return out;
  };

  if (const UnaryRow* row = find_row(kUnary, op)) return map([&](int64_t i) { return row->f(in[0]->at(i)); });
  if (const BinaryRow* row = find_row(kBinary, op))
    return map([&](int64_t i) { return row->f(in[0]->at(i), in[1]->at(i)); });
  if (const BinaryRow* row = find_row(kLogic, op); row && from == DType::kBool)
    return map([&](int64_t i) { return row->f(in[0]->at(i), in[1]->at(i)); });
  if (op == "prim.bitwise_not" && from == DType::kBool)
    return map([&](int64_t i) { return in[0]->at(i) == 0 ? 1.0 : 0.0; });
  if (op == "prim.where") return map([&](int64_t i) { return in[0]->at(i) != 0 ? in[1]->at(i) : in[2]->at(i); });
  if (op == "prim.convert") return map([&](int64_t i) { return in[0]->at(i); });
  if (op == "prim.reshape") return std::make_shared<KnownArray>(KnownArray{*sizes, in[0]->data});

  if (uniform && n.op->kind == ops::OpKind::kView) return std::make_shared<KnownArray>(KnownArray{*sizes, in[0]->data});

  const std::vector<int64_t> strides = row_major(in[0]->sizes);
  if (op == "prim.broadcast") {
    const std::vector<int64_t> dims = ops::as_ints(n.args[2]);
    std::vector<int64_t> s(sizes->size(), 0);
    for (size_t i = 0; i < dims.size(); ++i)
      if (in[0]->sizes[i] != 1) s[dims[i]] = strides[i];
    return gather(*in[0], *sizes, s, 0);
  }
  if (op == "prim.permute") {
    std::vector<int64_t> s;
    for (int64_t d : ops::as_ints(n.args[1])) s.push_back(strides[d]);
    return gather(*in[0], *sizes, s, 0);
  }
  if (op == "prim.slice") {
    const Sizes starts = ops::as_sizes(n.args[1]), steps = ops::as_sizes(n.args[3]);
    std::vector<int64_t> s;
    int64_t origin = 0;
    for (size_t d = 0; d < strides.size(); ++d) {
      if (!starts[d].is_const() || !steps[d].is_const()) return nullptr;
      origin += starts[d].value() * strides[d];
      s.push_back(steps[d].value() * strides[d]);
    }
    return gather(*in[0], *sizes, s, origin);
  }
  return nullptr;
}

}  // namespace flashover::graph
