// Each accessor checks the kind of an argument before it hands out its value.
#include "ops/args.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sym/environment.h"
#include "sym/samples.h"

namespace flashover::ops {

RefList as_values(const Arg& a) {
  if (const auto* l = std::get_if<RefList>(&a)) return *l;
  if (const auto* s = std::get_if<Sizes>(&a); s && s->empty()) return {};
  FLASHOVER_CHECK(false) << "list of tensors expected";
  return {};
}

sym::Expr as_expr(const Arg& a) {
  if (const auto* e = std::get_if<sym::Expr>(&a)) return *e;
  if (const auto* b = std::get_if<bool>(&a)) return *b ? 1 : 0;
  FLASHOVER_CHECK(false) << "int argument expected";
  return 0;
}

int64_t as_int(const Arg& a) { return as_expr(a).value(); }

Sizes as_sizes(const Arg& a) {
  if (const auto* l = std::get_if<Sizes>(&a)) return *l;
  if (const auto* l = std::get_if<RefList>(&a); l && l->empty()) return {};
  if (const auto* l = std::get_if<std::vector<double>>(&a); l && l->empty()) return {};
  return {as_expr(a)};
}

std::vector<int64_t> as_ints(const Arg& a) {
  std::vector<int64_t> out;
  for (sym::Expr e : as_sizes(a)) out.push_back(e.value());
  return out;
}

bool as_bool(const Arg& a) {
  if (const auto* b = std::get_if<bool>(&a)) return *b;
  return as_int(a) != 0;
}

double as_double(const Arg& a) {
  if (const auto* d = std::get_if<double>(&a)) return *d;
  return static_cast<double>(as_int(a));
}

DType as_dtype(const Arg& a) {
  const auto* d = std::get_if<DType>(&a);
  FLASHOVER_CHECK(d) << "dtype argument expected";
  return *d;
}

Device as_device(const Arg& a) {
  const auto* d = std::get_if<Device>(&a);
  return d ? *d : Device{};
}

bool is_number(const Arg& a, double value) {
  if (const auto* d = std::get_if<double>(&a)) return *d == value && std::signbit(*d) == std::signbit(value);
  if (const auto* b = std::get_if<bool>(&a)) return (*b ? 1.0 : 0.0) == value;
  if (const auto* e = std::get_if<sym::Expr>(&a)) return e->is_const() && static_cast<double>(e->value()) == value;
  return false;
}

namespace {
// For large sizes it is none: 12 - s0, 12 // s0.
bool shrinks(sym::Expr e) {
  if (e.is_const() || e.kind() == sym::Kind::kVar) return false;
  if (e.kind() == sym::Kind::kMul && e.operands()[0].is_const() && e.operands()[0].value() < 0) return true;
  const bool divided = e.kind() == sym::Kind::kFloorDiv || e.kind() == sym::Kind::kMod;
  return (divided && !e.operands()[1].is_const()) || std::ranges::any_of(e.operands(), shrinks);
}
}  // namespace

bool is_smaller_stride(sym::Expr a, sym::Expr b) {
  if (a == b) return false;
  if (shrinks(a) || shrinks(b)) {
    if (sym::follows(sym::Relation::kLess, a, b)) return true;
    if (sym::follows(sym::Relation::kLessEqual, b, a)) return false;
  }
  return sym::usually_below(a, b);
}

Sizes dense_like(const Sizes& sizes, const Sizes& strides) {
  if (sizes.size() != strides.size()) return contiguous_strides(sizes);
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  // Outermost first. Dims of size 1 and stride-0 dims have no order of their own: they stay where they are.
  auto movable = [&](size_t d) { return !sizes[d].is_const(1) && !strides[d].is_const(0); };
  for (size_t i = 1; i < order.size(); ++i) {
    if (!movable(order[i])) continue;
    size_t at = i;
    for (size_t j = i; j-- > 0;) {
      if (!movable(order[j])) continue;
      if (!is_smaller_stride(strides[order[j]], strides[order[at]])) break;
      std::swap(order[j], order[at]);
      at = j;
    }
  }
  Sizes out(sizes.size());
  sym::Expr stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    out[order[i]] = stride;
    const sym::Expr n = sizes[order[i]];
    stride = stride * (n.is_const() ? sym::Expr(std::max<int64_t>(n.value(), 1)) : n);
  }
  return out;
}

bool is_dense(const Sizes& sizes, const Sizes& strides) {
  if (sizes.size() != strides.size()) return false;
  std::vector<size_t> order;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i].is_const(0)) return true;
    if (!sizes[i].is_const(1)) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return is_smaller_stride(strides[a], strides[b]); });
  sym::Expr expected = 1;
  for (size_t i : order) {
    if (!sym::known_eq(strides[i], expected)) return false;
    expected = expected * sizes[i];
  }
  return true;
}

std::optional<Sizes> view_strides(const TensorType& t, const Sizes& sizes) {
  if (t.opaque) return std::nullopt;
  for (sym::Expr n : t.sizes)
    if (n.is_const(0)) return contiguous_strides(sizes);
  Sizes out(sizes.size(), 1);
  // Walk from the right: maximal runs of input dims that are contiguous with each other must equal runs of output dims.
  auto view_d = static_cast<int64_t>(sizes.size()) - 1;
  sym::Expr chunk_stride = t.rank() ? t.strides.back() : sym::Expr(1);
  sym::Expr chunk = 1, seen = 1;
  for (int64_t d = static_cast<int64_t>(t.rank()) - 1; d >= 0; --d) {
    chunk = chunk * t.sizes[d];
    const bool ends = d == 0 || (!t.sizes[d - 1].is_const(1) && !sym::known_eq(t.strides[d - 1], chunk * chunk_stride));
    if (!ends) continue;
    while (view_d >= 0 && (!sym::known_eq(seen, chunk) || sizes[view_d].is_const(1))) {
      if (!sym::known_le(seen * sizes[view_d], chunk)) return std::nullopt;
      out[view_d] = seen * chunk_stride;
      seen = seen * sizes[view_d];
      --view_d;
    }
    if (!sym::known_eq(seen, chunk)) return std::nullopt;
    if (d > 0) {
      chunk_stride = t.strides[d - 1];
      chunk = seen = 1;
    }
  }
  for (; view_d >= 0; --view_d) {
    if (!sizes[view_d].is_const(1)) return std::nullopt;
    out[view_d] = seen * chunk_stride;
  }
  return out;
}

Sizes broadcast_sizes(const Sizes& a, const Sizes& b) {
  Sizes out(std::max(a.size(), b.size()), 1);
  for (size_t i = 0; i < out.size(); ++i) {
    const sym::Expr x = i < a.size() ? a[a.size() - 1 - i] : sym::Expr(1);
    const sym::Expr y = i < b.size() ? b[b.size() - 1 - i] : sym::Expr(1);
    FLASHOVER_CHECK(x.is_const(1) || y.is_const(1) || sym::known_eq(x, y))
        << "sizes do not broadcast: " << x.str() << " and " << y.str();
    out[out.size() - 1 - i] = x.is_const(1) ? y : x;
  }
  return out;
}

}  // namespace flashover::ops
