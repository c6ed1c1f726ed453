// Views: same storage, other geometry.
#include <algorithm>
#include <limits>

#include "ops/aten/infer.h"
#include "ops/last_element.h"
#include "sym/environment.h"
#include "sym/quotient.h"

namespace flashover::ops::aten {
namespace {

// How many of the view's dimensions, the last of those before `left`, have as many elements as a chunk. Nothing is asked
// for that: it is so whichever of them have one element. nullopt: not known.
std::optional<size_t> filling(const Sizes& sizes, size_t left, Expr tensor_numel) {
  Expr view_numel = 1;
  for (size_t count = 0;; ++count) {
    if (sym::follows(sym::Relation::kEqual, view_numel, tensor_numel)) return count;
    if (count == left) return std::nullopt;
    view_numel *= sizes[left - count - 1];
  }
}

// ATen's computeStride. Where some of the view's dimensions are known to fill a chunk that may end here, it makes no
// difference whether it does.
std::optional<Sizes> strides_of_view(const TensorType& t, const Sizes& sizes) {
  if (t.rank() == 0) return Sizes(sizes.size(), Expr(1));
  if (has_zero_size(t)) return same_sizes(t.sizes, sizes) ? t.strides : contiguous_strides(sizes);
  Sizes result(sizes.size());
  size_t left = sizes.size();  // dimensions of the view without a stride
  Expr base = t.strides.back(), tensor_numel = 1;
  for (size_t d = t.rank(); d-- > 0;) {
    tensor_numel *= t.sizes[d];
    const Expr next = tensor_numel * base;
    if (d != 0 && (t.sizes[d - 1].is_const(1) || sym::follows(sym::Relation::kEqual, t.strides[d - 1], next))) continue;
    const std::optional<size_t> filled = filling(sizes, left, tensor_numel);
    if (d != 0 && !filled && sym::known_eq(t.strides[d - 1], next)) continue;
    const size_t known = left - filled.value_or(0);
    Expr view_numel = 1;
    const auto goes_on = [&] {
      const sym::LayoutScope layout;
      return left > known || sizes[left - 1].is_const(1) || (!filled && sym::known_lt(view_numel, tensor_numel));
    };
    while (left > 0 && goes_on()) {
      --left;
      result[left] = view_numel * base;
      view_numel *= sizes[left];
    }
    if (!sym::known_eq(view_numel, tensor_numel)) return std::nullopt;
    if (d > 0) {
      base = t.strides[d - 1];
      tensor_numel = 1;
    }
  }
  if (left != 0) return std::nullopt;
  return result;
}

// Sizes with one -1 filled in; nullopt when they do not fit the element count.
std::optional<Sizes> resolve_sizes(const TensorType& t, const Arg& a) {
  Sizes sizes;
  if (auto* s = std::get_if<Sizes>(&a)) {
    sizes = *s;
  } else if (auto list = integers(a)) {
    sizes = exprs(*list);
  } else {
    return std::nullopt;
  }
  std::optional<size_t> hole;
  Expr known = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i].is_const(-1)) {
      if (hole) return std::nullopt;
      hole = i;
    } else {
      if (sizes[i].is_const() && sizes[i].value() < 0) return std::nullopt;
      known *= sizes[i];
    }
  }
  Expr total = t.numel();
  if (hole) {
    if (known.is_const(0)) return std::nullopt;
    const Expr q = sym::known_lt(0, known) ? sym::known_quotient(total, known) : sym::floordiv(total, known);
    if (!sym::known_eq(q * known, total)) return std::nullopt;
    sizes[*hole] = q;
  } else if (!sym::known_eq(known, total)) {
    return std::nullopt;
  }
  return sizes;
}

bool view(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  if (!x) return false;
  auto sizes = resolve_sizes(*x, arg(in, 1));
  if (!sizes) return false;
  auto strides = strides_of_view(*x, *sizes);
  if (!strides) return false;
  TensorType out = *x;
  out.wrapped_number = false;
  out.sizes = *sizes;
  out.strides = *strides;
  return one(outs, std::move(out));
}
bool unsafe_view(In in, Types& outs) {
  if (!view(in, outs)) return false;
  outs[0].offset = 0;
  return true;
}

bool expand(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto* want = std::get_if<Sizes>(&arg(in, 1));
  if (!x) return false;
  Sizes target = want ? *want : Sizes{};
  if (target.size() < x->rank()) return false;
  TensorType out = *x;
  out.wrapped_number = false;
  size_t n = target.size(), shift = n - x->rank();
  out.sizes.resize(n);
  out.strides.resize(n);
  for (size_t i = n; i-- > 0;) {
    bool old = i >= shift;
    Expr size = old ? x->sizes[i - shift] : Expr(1);
    Expr stride = old ? x->strides[i - shift] : i + 1 < n ? out.sizes[i + 1] * out.strides[i + 1] : Expr(1);
    Expr t = target[i];
    if (t.is_const(-1)) {
      if (!old) return false;
      t = size;
    }
    if (!sym::known_eq(size, t)) {
      if (!size.is_const(1)) return false;
      stride = 0;
      size = t;
    }
    out.sizes[i] = size;
    out.strides[i] = x->rank() == 0 ? Expr(0) : stride;
  }
  return one(outs, std::move(out));
}

bool permuted(const TensorType& x, const std::vector<size_t>& order, Types& outs) {
  TensorType out = x;
  for (size_t i = 0; i < order.size(); ++i) {
    out.sizes[i] = x.sizes[order[i]];
    out.strides[i] = x.strides[order[i]];
  }
  return one(outs, std::move(out));
}
bool permute(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto dims = integers(arg(in, 1));
  if (!x || !dims || dims->size() != x->rank()) return false;
  std::vector<size_t> order;
  std::vector<bool> seen(x->rank());
  for (int64_t d : *dims) {
    auto w = wrap_dim(d, x->rank());
    if (!w || seen[*w]) return false;
    seen[*w] = true;
    order.push_back(*w);
  }
  return permuted(*x, order, outs);
}
bool swap_dims(const TensorType& x, size_t a, size_t b, Types& outs) {
  TensorType out = x;
  std::swap(out.sizes[a], out.sizes[b]);
  std::swap(out.strides[a], out.strides[b]);
  return one(outs, std::move(out));
}
bool transpose(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto a = integer(arg(in, 1)), b = integer(arg(in, 2));
  if (!x || !a || !b) return false;
  auto wa = wrap_dim(*a, x->rank()), wb = wrap_dim(*b, x->rank());
  if (!wa || !wb) return false;
  return x->rank() == 0 ? one(outs, *x) : swap_dims(*x, *wa, *wb, outs);
}
bool t_(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  if (!x || x->rank() > 2) return false;
  return x->rank() < 2 ? one(outs, *x) : swap_dims(*x, 0, 1, outs);
}

bool squeezed(const TensorType& x, const std::vector<bool>& which, Types& outs) {
  TensorType out = x;
  out.sizes.clear();
  out.strides.clear();
  for (size_t i = 0; i < x.rank(); ++i) {
    const bool stays = !which[i] || sym::known_ne(x.sizes[i], 1);
    if (!stays && !sym::known_eq(x.sizes[i], 1)) return false;
    if (!stays) continue;
    out.sizes.push_back(x.sizes[i]);
    out.strides.push_back(x.strides[i]);
  }
  return one(outs, std::move(out));
}
bool squeeze_all(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  return x && squeezed(*x, std::vector<bool>(x->rank(), true), outs);
}
bool squeeze(In in, Types& outs) {  // .dim and .dims
  const TensorType* x = tensor(in, 0);
  if (!x || is_none(arg(in, 1))) return false;
  auto mask = dim_mask(arg(in, 1), x->rank(), false);
  return mask && squeezed(*x, *mask, outs);
}
bool unsqueeze(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto dim = integer(arg(in, 1));
  if (!x || !dim) return false;
  auto d = wrap_dim(*dim, x->rank() + 1);
  if (!d) return false;
  TensorType out = *x;
  out.wrapped_number = false;
  Expr stride = *d >= x->rank() ? Expr(1) : x->sizes[*d] * x->strides[*d];
  out.sizes.insert(out.sizes.begin() + static_cast<int64_t>(*d), Expr(1));
  out.strides.insert(out.strides.begin() + static_cast<int64_t>(*d), stride);
  return one(outs, std::move(out));
}

TensorType dropped(const TensorType& x, size_t d, Expr index) {
  TensorType out = x;
  out.offset = x.offset + index * x.strides[d];
  out.sizes.erase(out.sizes.begin() + static_cast<int64_t>(d));
  out.strides.erase(out.strides.begin() + static_cast<int64_t>(d));
  return out;
}
bool select(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto dim = integer(arg(in, 1));
  const auto index = size_expr(arg(in, 2));
  if (!x || x->rank() == 0 || !dim || !index) return false;
  auto d = wrap_dim(*dim, x->rank());
  if (!d) return false;
  Expr i = *index, size = x->sizes[*d];
  if (!sym::known_le(0, i)) i = size + i;
  if (!sym::known_le(0, i) || !sym::known_lt(i, size)) return false;
  return one(outs, dropped(*x, *d, i));
}
bool unbind(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto dim = integer(arg(in, 1));
  if (!x || x->rank() == 0 || !dim) return false;
  auto d = wrap_dim(*dim, x->rank());
  const auto count = d ? sym::number_of(x->sizes[*d]) : std::nullopt;
  if (!count) return false;
  outs.clear();
  for (int64_t i = 0; i < *count; ++i) outs.push_back(dropped(*x, *d, i));
  return true;
}

TensorType narrowed(const TensorType& x, size_t d, Expr start, Expr length, int64_t step) {
  TensorType out = x;
  out.offset = x.offset + start * x.strides[d];
  out.sizes[d] = length;
  out.strides[d] = x.strides[d] * step;
  return out;
}
bool slice(In in, Types& outs) {  // (self, dim, start, end, step)
  const TensorType* x = tensor(in, 0);
  auto dim = integer(arg(in, 1)), step = integer(arg(in, 4));
  if (!x || x->rank() == 0 || !dim || !step || *step <= 0) return false;
  auto d = wrap_dim(*dim, x->rank());
  if (!d) return false;
  Expr size = x->sizes[*d];
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  // Clamps into [0, size]; nullopt when not provable.
  auto bound = [&](const Arg& a, Expr fallback) -> std::optional<Expr> {
    if (is_none(a)) return fallback;
    auto e = size_expr(a);
    if (!e) return std::nullopt;
    if (e->is_const(kMax)) return size;
    if (e->is_const() && size.is_const()) {
      int64_t v = e->value(), n = size.value();
      if (v < 0) v += n;
      return Expr(std::clamp<int64_t>(v, 0, n));
    }
    const auto follows = [](Expr low, Expr high) { return sym::follows(sym::Relation::kLessEqual, low, high); };
    if ((sym::has_data_size(size) || sym::has_data_size(*e)) && follows(0, *e) && !follows(*e, size) &&
        !follows(size, *e))
      return sym::min(*e, size);
    if (sym::known_le(0, *e)) {
      if (sym::known_le(*e, size)) return *e;
      if (sym::known_le(size, *e)) return size;
      return std::nullopt;
    }
    if (!sym::known_lt(*e, 0)) return std::nullopt;
    if (sym::known_le(0, size + *e)) return size + *e;
    if (sym::known_lt(size + *e, 0)) return Expr(0);
    return std::nullopt;
  };
  auto start = bound(arg(in, 2), 0), end = bound(arg(in, 3), size);
  if (!start || !end) return false;
  Expr length = *end - *start;
  if (!sym::known_le(0, length)) {
    if (!sym::known_lt(length, 0)) return false;
    length = 0;
  }
  return one(outs, narrowed(*x, *d, *start, sym::ceildiv(length, *step), *step));
}

bool split(In in, Types& outs) {  // (self, split_size, dim)
  const TensorType* x = tensor(in, 0);
  const auto part = size_expr(arg(in, 1));
  const auto dim = integer(arg(in, 2));
  if (!x || x->rank() == 0 || !part || !dim || !sym::known_le(0, *part)) return false;
  const auto d = wrap_dim(*dim, x->rank());
  if (!d) return false;
  const Expr size = x->sizes[*d];
  outs.clear();
  if (size.is_const(0)) return one(outs, narrowed(*x, *d, 0, 0, 1));
  if (!sym::known_lt(0, *part)) return false;
  const auto count = sym::number_of(sym::ceildiv(size, *part));
  if (!count) return false;
  for (int64_t i = 0; i < *count; ++i)
    outs.push_back(narrowed(*x, *d, i * *part, i + 1 < *count ? *part : size - i * *part, 1));
  return true;
}
bool split_with_sizes(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto* parts = std::get_if<Sizes>(&arg(in, 1));
  auto dim = integer(arg(in, 2));
  if (!x || x->rank() == 0 || !parts || !dim) return false;
  auto d = wrap_dim(*dim, x->rank());
  if (!d) return false;
  outs.clear();
  Expr at = 0;
  for (Expr p : *parts) {
    if (!sym::known_le(0, p)) return false;
    outs.push_back(narrowed(*x, *d, at, p, 1));
    at += p;
  }
  return sym::known_eq(at, x->sizes[*d]);
}

bool diagonal(In in, Types& outs) {  // (self, offset, dim1, dim2)
  const TensorType* x = tensor(in, 0);
  auto offset = integer(arg(in, 1)), dim1 = integer(arg(in, 2)), dim2 = integer(arg(in, 3));
  if (!x || x->rank() < 2 || !offset || !dim1 || !dim2) return false;
  auto a = wrap_dim(*dim1, x->rank()), b = wrap_dim(*dim2, x->rank());
  if (!a || !b || *a == *b) return false;
  const Expr rows = x->sizes[*a], columns = x->sizes[*b];
  const Expr n =
      sym::max(*offset >= 0 ? sym::min(rows, columns - *offset) : sym::min(rows + *offset, columns), Expr(0));
  if (!n.is_const() && !sym::known_lt(0, n)) return false;
  TensorType out = *x;
  if (!n.is_const(0)) out.offset += *offset >= 0 ? x->strides[*b] * *offset : x->strides[*a] * -*offset;
  Expr stride = x->strides[*a] + x->strides[*b];
  for (size_t d : {std::max(*a, *b), std::min(*a, *b)}) {
    out.sizes.erase(out.sizes.begin() + static_cast<int64_t>(d));
    out.strides.erase(out.strides.begin() + static_cast<int64_t>(d));
  }
  out.sizes.push_back(n);
  out.strides.push_back(stride);
  return one(outs, std::move(out));
}

bool as_strided(In in, Types& outs) {  // (self, size, stride, storage_offset)
  const TensorType* x = tensor(in, 0);
  auto list = [](const Arg& a) -> std::optional<Sizes> {
    if (auto* s = std::get_if<Sizes>(&a)) return *s;
    if (auto v = integers(a); v && !is_none(a)) return exprs(*v);
    return std::nullopt;
  };
  auto sizes = list(arg(in, 1)), strides = list(arg(in, 2));
  if (!x || !sizes || !strides || sizes->size() != strides->size()) return false;
  TensorType out = *x;
  out.wrapped_number = false;
  for (Expr e : *sizes)
    if (!sym::known_le(0, e)) return false;
  for (Expr e : *strides)
    if (!sym::known_le(0, e)) return false;
  out.sizes = *sizes;
  out.strides = *strides;
  if (auto offset = size_expr(arg(in, 3))) out.offset = *offset;
  const auto constant = [](Expr e) { return e.is_const(); };
  if (constant(out.offset) && std::ranges::all_of(out.sizes, constant) && std::ranges::all_of(out.strides, constant))
    return one(outs, std::move(out));
  // Whether it is a part of x: views that are must be known to be.
  sym::known_lt(last_element(out), x->offset + x->numel());
  return one(outs, std::move(out));
}

bool unfold(In in, Types& outs) {  // (self, dimension, size, step)
  const TensorType* x = tensor(in, 0);
  auto dim = integer(arg(in, 1)), step = integer(arg(in, 3));
  auto size = size_expr(arg(in, 2));
  if (!x || !dim || !size || !step || *step <= 0 || !sym::known_le(0, *size) || x->rank() == 0) return false;
  auto d = wrap_dim(*dim, x->rank());
  if (!d || !sym::known_le(*size, x->sizes[*d])) return false;
  TensorType out = *x;
  out.sizes[*d] = sym::floordiv(x->sizes[*d] - *size, *step) + 1;
  out.strides[*d] = x->strides[*d] * *step;
  out.sizes.push_back(*size);
  out.strides.push_back(x->strides[*d]);
  return one(outs, std::move(out));
}

bool alias(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  return x && one(outs, *x);
}

bool view_as_real(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  if (!x || !is_complex(x->dtype)) return false;
  TensorType out = *x;
  out.dtype = to_real(x->dtype);
  for (Expr& s : out.strides) s = s * 2;
  out.sizes.push_back(2);
  out.strides.push_back(1);
  out.offset = x->offset * 2;
  return one(outs, std::move(out));
}
bool view_as_complex(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  if (!x || !is_floating(x->dtype) || x->dtype == DType::kBF16 || x->rank() == 0) return false;
  if (!x->sizes.back().is_const(2) || !x->strides.back().is_const(1) || !sym::known_divisible(x->offset, 2))
    return false;
  TensorType out = *x;
  out.dtype = to_complex(x->dtype);
  out.sizes.pop_back();
  out.strides.pop_back();
  out.offset = sym::quotient(x->offset, 2);
  for (Expr& s : out.strides) {
    if (!sym::known_divisible(s, 2)) return false;
    s = sym::quotient(s, 2);
  }
  return one(outs, std::move(out));
}
bool view_dtype(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto d = dtype_of(arg(in, 1));
  if (!x || !d || info(*d).bytes != info(x->dtype).bytes) return false;
  TensorType out = *x;
  out.dtype = *d;
  return one(outs, std::move(out));
}

}  // namespace

void add_views(Table& t) {
  auto row = [&](const char* name, InferRule f) { t.add(name, OpKind::kView, f).is_aten_view = true; };
  row("view.default", view);
  row("_reshape_alias.default", as_strided);
  row("expand.default", expand);
  row("permute.default", permute);
  row("transpose.int", transpose);
  row("t.default", t_);
  row("squeeze.default", squeeze_all);
  row("squeeze.dim", squeeze);
  row("squeeze.dims", squeeze);
  row("unsqueeze.default", unsqueeze);
  row("select.int", select);
  row("slice.Tensor", slice);
  row("split.Tensor", split);
  row("split_with_sizes.default", split_with_sizes);
  row("unbind.int", unbind);
  row("diagonal.default", diagonal);
  row("as_strided.default", as_strided);
  row("unfold.default", unfold);
  row("alias.default", alias);
  row("detach.default", alias);
  row("lift_fresh.default", alias);
  row("view.dtype", view_dtype);
  row("view_as_real.default", view_as_real);
  row("view_as_complex.default", view_as_complex);
  t.add("_unsafe_view.default", OpKind::kView,
        unsafe_view);  // the schema calls it fresh, and its source is never used again
}

}  // namespace flashover::ops::aten
