// Evaluates prims on small arrays of doubles, for values without an input of the caller in them.
#include "graph/analysis/constants.h"

#include <cmath>
#include <cstring>

#include "ops/args.h"
#include "ops/names.h"
#include "ops/scalar.h"

namespace flashover::graph {
namespace {

using Array = std::shared_ptr<ConstantArray>;

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

// Steps through data for each dimension; 0 where all elements along it are equal.
std::vector<int64_t> strides_of(const ConstantArray& x) {
  std::vector<int64_t> strides(x.stored.size(), 0);
  int64_t step = 1;
  for (size_t d = x.stored.size(); d-- > 0;) {
    if (x.stored[d] != 1) strides[d] = step;
    step *= x.stored[d];
  }
  return strides;
}

// Calls f(k, offsets) for every stored element k of a result, with the offset of each operand's element for it.
template <typename F>
void walk(const std::vector<int64_t>& stored, const std::vector<std::vector<int64_t>>& strides,
          std::vector<int64_t> offsets, F&& f) {
  const int64_t n = count(stored);
  std::vector<int64_t> index(stored.size(), 0);
  for (int64_t k = 0; k < n; ++k) {
    f(k, offsets);
    for (size_t d = stored.size(); d-- > 0;) {
      const bool more = ++index[d] < stored[d];
      for (size_t i = 0; i < offsets.size(); ++i) offsets[i] += more ? strides[i][d] : -strides[i][d] * (stored[d] - 1);
      if (more) break;
      index[d] = 0;
    }
  }
}

// out[i...] = x[origin + sum of index * stride], strides into x's data; `stored` says where they are not 0.
Array gather(const ConstantArray& x, std::vector<int64_t> sizes, std::vector<int64_t> stored,
             const std::vector<int64_t>& strides, int64_t origin) {
  auto out = std::make_shared<ConstantArray>(ConstantArray{std::move(sizes), std::move(stored), {}});
  out->data.resize(count(out->stored));
  walk(out->stored, {strides}, {origin}, [&](int64_t k, const auto& at) { out->data[k] = x.data[at[0]]; });
  return out;
}

// Pointwise prims whose results doubles hold: not those that round as the machine's functions do.
bool is_exact(Prim prim, DType operand) {
  return is_any_of(prim,
                   {Prim::neg,   Prim::abs, Prim::floor, Prim::ceil, Prim::relu,    Prim::logical_not, Prim::isnan,
                    Prim::isinf, Prim::add, Prim::sub,   Prim::mul,  Prim::minimum, Prim::maximum,     Prim::eq,
                    Prim::ne,    Prim::lt,  Prim::le,    Prim::gt,   Prim::ge,      Prim::where}) ||
         (operand == DType::kBool &&
          is_any_of(prim, {Prim::bitwise_and, Prim::bitwise_or, Prim::bitwise_xor, Prim::bitwise_not}));
}

// As ops::compute takes and gives them.
constexpr double kMostExact = 9007199254740992.0;  // 2^53
ops::Scalar to_scalar(double x) { return {x, std::fabs(x) < kMostExact ? static_cast<int64_t>(x) : 0}; }
double from_scalar(DType dtype, const ops::Scalar& x) { return is_floating(dtype) ? x.f : static_cast<double>(x.i); }
DType computed_in(DType d) { return d == DType::kBF16 || d == DType::kF16 ? DType::kF32 : d; }

// Doubles hold their numbers exactly, but for i64 beyond 2^53, which are given up.
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
  const double limit = bits >= 53 ? kMostExact : std::ldexp(1.0, bits);
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

namespace {

// One node, all of whose operands are known.
class Evaluation {
 public:
  using Result = std::shared_ptr<const ConstantArray>;
  Evaluation(const Graph& g, const Node& node, ValueId v, std::vector<int64_t> sizes, int64_t& budget)
      : g_(g), node_(node), type_(g.type(v)), sizes_(std::move(sizes)), budget_(budget) {}

  // `operands` in the order of the arguments; `from`: the first one's dtype.
  Result run(std::vector<Result> operands, DType from) {
    in_ = std::move(operands);
    const Prim prim = node_.op->prim;
    if (is_exact(prim, from)) return pointwise(prim, from);
    if (prim == Prim::copy || prim == Prim::convert) return map([](auto&& x) { return x(0); });
    if (in_[0]->is_uniform() && node_.op->kind == ops::OpKind::kView) return array({sizes_, ones(), in_[0]->data});
    switch (prim) {
      case Prim::reshape:
        return reshape();
      case Prim::broadcast:
        return broadcast();
      case Prim::permute:
        return permute();
      case Prim::slice:
        return slice();
      case Prim::cat:
        return cat();
      case Prim::cumsum:
        return is_integral(type_.dtype) ? cumsum() : nullptr;
      case Prim::index:
        return index();
      default:
        return nullptr;
    }
  }

  Result full() {
    const auto x = scalar(node_.args[1]);
    if (!x) return nullptr;
    const double value = round_to(type_.dtype, *x);
    if (!fits(type_.dtype, value)) return nullptr;
    return array({sizes_, ones(), {value}});
  }
  Result iota() {
    const auto start = scalar(node_.args[1]), step = scalar(node_.args[2]);
    if (!start || !step || is_floating(type_.dtype) || !pay(sizes_)) return nullptr;
    auto out = array({sizes_, sizes_, {}});
    for (int64_t i = 0; i < sizes_[0]; ++i) out->data.push_back(*start + static_cast<double>(i) * *step);
    return fits(type_.dtype, out->data.front()) && fits(type_.dtype, out->data.back()) ? out : nullptr;
  }

 private:
  static Array array(ConstantArray a) { return std::make_shared<ConstantArray>(std::move(a)); }
  size_t rank() const { return sizes_.size(); }
  std::vector<int64_t> ones() const { return std::vector<int64_t>(rank(), 1); }
  bool pay(const std::vector<int64_t>& stored) { return (budget_ -= count(stored)) >= 0; }

  Result pointwise(Prim prim, DType from) {
    const DType operand = computed_in(from);
    return map([&](auto&& x) {
      const auto at = [&](size_t i) { return i < in_.size() ? to_scalar(x(i)) : ops::Scalar{}; };
      return from_scalar(type_.dtype, ops::compute(prim, operand, at(0), at(1), at(2)));
    });
  }
  // f(a, b, c) element by element; operands have the result's sizes.
  template <typename F>
  Result map(F&& f) {
    auto out = array({sizes_, ones(), {}});
    std::vector<std::vector<int64_t>> strides;
    for (const auto& x : in_) {
      if (x->sizes != sizes_) return nullptr;
      for (size_t d = 0; d < rank(); ++d) out->stored[d] = std::max(out->stored[d], x->stored[d]);
      strides.push_back(strides_of(*x));
    }
    if (!pay(out->stored)) return nullptr;
    out->data.resize(count(out->stored));
    bool good = true;
    walk(out->stored, strides, std::vector<int64_t>(in_.size(), 0), [&](int64_t k, const auto& at) {
      const double x = f([&](size_t i) { return in_[i]->data[at[i]]; });
      good = good && (is_floating(type_.dtype) || (!std::isnan(x) && fits(type_.dtype, x)));
      out->data[k] = round_to(type_.dtype, x);
    });
    return good ? out : nullptr;
  }
  Result reshape() {
    const ConstantArray& x = *in_[0];
    // Dims of size 1 come and go for free.
    std::vector<int64_t> before, after, kept;
    for (size_t d = 0; d < x.sizes.size(); ++d)
      if (x.sizes[d] != 1) before.push_back(x.sizes[d]), kept.push_back(x.stored[d]);
    for (int64_t s : sizes_)
      if (s != 1) after.push_back(s);
    if (before == after) {
      std::vector<int64_t> stored;
      size_t next = 0;
      for (int64_t s : sizes_) stored.push_back(s == 1 ? 1 : kept[next++]);
      return array({sizes_, std::move(stored), x.data});
    }
    if (!pay(x.sizes)) return nullptr;
    auto whole = gather(x, x.sizes, x.sizes, strides_of(x), 0);
    return array({sizes_, sizes_, std::move(whole->data)});
  }
  Result broadcast() {
    const ConstantArray& x = *in_[0];
    const std::vector<int64_t> dims = ops::as_ints(node_.args[2]);
    std::vector<int64_t> stored = ones();
    for (size_t i = 0; i < dims.size(); ++i) stored[dims[i]] = x.stored[i];
    return array({sizes_, std::move(stored), x.data});
  }
  Result permute() {
    const ConstantArray& x = *in_[0];
    const std::vector<int64_t> strides = strides_of(x);
    std::vector<int64_t> s, stored;
    for (int64_t d : ops::as_ints(node_.args[1])) s.push_back(strides[d]), stored.push_back(x.stored[d]);
    if (!pay(stored)) return nullptr;
    return gather(x, sizes_, std::move(stored), s, 0);
  }
  Result slice() {
    const ConstantArray& x = *in_[0];
    const std::vector<int64_t> strides = strides_of(x);
    const Sizes starts = ops::as_sizes(node_.args[1]), steps = ops::as_sizes(node_.args[3]);
    std::vector<int64_t> s, stored;
    int64_t origin = 0;
    for (size_t d = 0; d < rank(); ++d) {
      if (!starts[d].is_const() || !steps[d].is_const()) return nullptr;
      origin += starts[d].value() * strides[d];
      stored.push_back(strides[d] ? sizes_[d] : 1);
      s.push_back(stored[d] == 1 ? 0 : steps[d].value() * strides[d]);
    }
    if (!pay(stored)) return nullptr;
    return gather(x, sizes_, std::move(stored), s, origin);
  }
  Result cat() {
    const int64_t dim = ops::as_int(node_.args[1]);
    auto out = array({sizes_, ones(), {}});
    for (const auto& operand : in_)
      for (size_t d = 0; d < rank(); ++d) out->stored[d] = std::max(out->stored[d], operand->stored[d]);
    out->stored[dim] = sizes_[dim];
    if (!pay(out->stored)) return nullptr;
    out->data.resize(count(out->stored));
    const std::vector<int64_t> to = strides_of(*out);
    int64_t origin = 0;
    for (const auto& operand : in_) {
      std::vector<int64_t> part = out->stored;
      part[dim] = operand->sizes[dim];
      walk(part, {strides_of(*operand), to}, {0, origin},
           [&](int64_t, const auto& at) { out->data[at[1]] = operand->data[at[0]]; });
      origin += to[dim] * operand->sizes[dim];
    }
    return out;
  }
  Result cumsum() {
    const ConstantArray& x = *in_[0];
    const std::vector<int64_t> strides = strides_of(x);
    const int64_t dim = ops::as_int(node_.args[1]);
    auto out = array({sizes_, x.stored, {}});
    out->stored[dim] = sizes_[dim];
    if (!pay(out->stored)) return nullptr;
    out->data.resize(count(out->stored));
    const int64_t step = strides_of(*out)[dim];
    bool good = true;
    const int64_t length = sizes_[dim];
    walk(out->stored, {strides}, {0}, [&](int64_t k, const auto& at) {
      const bool first = length == 1 || k / step % length == 0;
      out->data[k] = x.data[at[0]] + (first ? 0 : out->data[k - step]);
      good = good && fits(type_.dtype, out->data[k]);
    });
    return good ? out : nullptr;
  }
  Result index() {
    const ConstantArray& x = *in_[0];
    const std::vector<int64_t> strides = strides_of(x);
    const RefList list = ops::as_values(node_.args[1]);
    // Indices of the first dims, none left out.
    for (size_t i = 0; i < list.size(); ++i)
      if (list[i].id == kNoValue || g_.type(list[i].id).dtype == DType::kBool) return nullptr;
    const size_t rest = x.sizes.size() - list.size(), front = rank() - rest;
    auto out = array({sizes_, ones(), {}});
    std::vector<std::vector<int64_t>> steps;
    for (size_t i = 0; i < list.size(); ++i) {
      const ConstantArray& index = *in_[i + 1];
      for (double at : index.data)
        if (at < -static_cast<double>(x.sizes[i]) || at >= static_cast<double>(x.sizes[i])) return nullptr;
      std::vector<int64_t> across(rank(), 0);
      const std::vector<int64_t> own = strides_of(index);
      if (strides[i] != 0)  // else every index finds the same
        for (size_t d = 0; d < own.size(); ++d) {
          const size_t to = front - own.size() + d;
          across[to] = own[d];
          out->stored[to] = std::max(out->stored[to], index.stored[d]);
        }
      steps.push_back(std::move(across));
    }
    std::vector<int64_t> behind(rank(), 0);
    for (size_t d = 0; d < rest; ++d) {
      behind[front + d] = strides[list.size() + d];
      out->stored[front + d] = x.stored[list.size() + d];
    }
    steps.push_back(std::move(behind));
    if (!pay(out->stored)) return nullptr;
    out->data.resize(count(out->stored));
    walk(out->stored, steps, std::vector<int64_t>(steps.size(), 0), [&](int64_t k, const auto& at) {
      int64_t from_data = at.back();
      for (size_t i = 0; i < list.size(); ++i) {
        auto where = static_cast<int64_t>(in_[i + 1]->data[at[i]]);
        if (where < 0) where += x.sizes[i];
        from_data += where * strides[i];
      }
      out->data[k] = x.data[from_data];
    });
    return out;
  }

  const Graph& g_;
  const Node& node_;
  const TensorType& type_;
  const std::vector<int64_t> sizes_;
  int64_t& budget_;
  std::vector<Result> in_;
};

}  // namespace

Constants::Constants(const Graph& g)
    : g_(g), producer_(g.values.size(), -1), state_(g.values.size(), 0), arrays_(g.values.size()) {
  for (size_t i = 0; i < g.nodes.size(); ++i)
    for (ValueId v : g.nodes[i].outs)
      if (v != kNoValue) producer_[v] = static_cast<int32_t>(i);
}

std::shared_ptr<const ConstantArray> Constants::operator[](ValueId v) {
  if (state_[v] == 0) {
    state_[v] = 1;
    if (producer_[v] >= 0) {
      const Node& n = g_.nodes[producer_[v]];
      if (n.op->is_prim() && n.outs.size() == 1 && representable(g_.type(v).dtype)) arrays_[v] = compute(n, v);
    }
  }
  return arrays_[v];
}

std::shared_ptr<const ConstantArray> Constants::compute(const Node& n, ValueId v) {
  auto sizes = const_sizes(g_.type(v).sizes);
  if (!sizes || count(*sizes) == 0) return nullptr;
  Evaluation evaluation(g_, n, v, std::move(*sizes), budget_);
  if (n.op->prim == Prim::full) return evaluation.full();
  if (n.op->prim == Prim::iota) return evaluation.iota();
  std::vector<std::shared_ptr<const ConstantArray>> in;
  ValueId first = kNoValue;
  bool all_constant = true;
  for (const Arg& a : n.args)
    for_each_ref(a, [&](ValueId x) {
      if (first == kNoValue) first = x;
      if (all_constant) in.push_back((*this)[x]);
      all_constant = all_constant && in.back() != nullptr;
    });
  return all_constant && !in.empty() ? evaluation.run(std::move(in), g_.type(first).dtype) : nullptr;
}

}  // namespace flashover::graph
