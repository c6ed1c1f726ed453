// Type promotion, broadcasting and memory layouts as TensorIterator decides them.
#include "ops/aten/infer.h"

#include <algorithm>
#include <deque>
#include <numeric>

#include "ops/args.h"
#include "sym/environment.h"

namespace flashover::ops::aten {
namespace {
const Arg kNone{};

bool is_int(DType d) { return is_integral(d); }
}  // namespace

// ---------------------------------------------------------------- arguments
const Arg& arg(In in, size_t i) { return i < in.args.size() ? in.args[i] : kNone; }

const TensorType* tensor(In in, size_t i) {
  if (!in.has_tensor(i)) return nullptr;
  const TensorType& t = in.type(i);
  return t.opaque ? nullptr : &t;
}

std::optional<int64_t> integer(const Arg& a) {
  if (auto* e = std::get_if<Expr>(&a)) return e->as_const();
  if (auto* b = std::get_if<bool>(&a)) return *b ? 1 : 0;
  return std::nullopt;
}

std::optional<Expr> size_expr(const Arg& a) {
  if (auto* e = std::get_if<Expr>(&a)) return *e;
  return std::nullopt;
}

bool flag(const Arg& a) {
  if (auto* b = std::get_if<bool>(&a)) return *b;
  if (auto* e = std::get_if<Expr>(&a)) return !e->is_const(0);
  return false;
}

std::optional<DType> dtype_of(const Arg& a) {
  if (auto* d = std::get_if<DType>(&a)) return *d;
  return std::nullopt;
}

std::optional<MemoryFormat> format_of(const Arg& a) {
  if (auto* f = std::get_if<MemoryFormat>(&a)) return *f;
  return std::nullopt;
}

std::optional<double> number(const Arg& a) {
  if (auto* d = std::get_if<double>(&a)) return *d;
  if (auto v = integer(a)) return static_cast<double>(*v);
  return std::nullopt;
}

std::optional<DType> scalar_dtype(const Arg& a) {
  if (std::holds_alternative<bool>(a)) return DType::kBool;
  if (std::holds_alternative<Expr>(a)) return DType::kI64;
  if (std::holds_alternative<double>(a)) return DType::kF64;
  if (std::holds_alternative<std::complex<double>>(a)) return DType::kC128;
  return std::nullopt;
}

bool is_scalar(const Arg& a) { return scalar_dtype(a).has_value(); }

std::optional<Sizes> size_list(const Arg& a) {
  if (const auto* sizes = std::get_if<Sizes>(&a)) return *sizes;
  const auto numbers = integers(a);
  return numbers ? std::optional(Sizes(numbers->begin(), numbers->end())) : std::nullopt;
}
std::optional<Ints> integers(const Arg& a) {
  if (is_none(a)) return Ints{};
  if (auto* s = std::get_if<Sizes>(&a)) return ints(*s);
  if (auto v = integer(a)) return Ints{*v};
  if (auto* l = std::get_if<RefList>(&a); l && l->empty()) return Ints{};
  return std::nullopt;
}

std::optional<std::vector<const TensorType*>> tensors(In in, size_t i) {
  const Arg& a = arg(in, i);
  std::vector<const TensorType*> result;
  if (auto* s = std::get_if<Sizes>(&a); s && s->empty()) return result;
  auto* list = std::get_if<RefList>(&a);
  if (!list) return std::nullopt;
  for (const Ref& r : *list) result.push_back(r.id == kNoValue ? nullptr : &in.value_type(r.id));
  return result;
}

const TensorType* operand(In in, size_t i, TensorType& scratch) {
  if (const TensorType* t = tensor(in, i)) return t;
  auto d = scalar_dtype(arg(in, i));
  if (!d) return nullptr;
  scratch = TensorType{};
  scratch.dtype = *d;
  scratch.wrapped_number = true;
  return &scratch;
}

std::optional<size_t> wrap_dim(int64_t dim, size_t rank) {
  int64_t n = rank == 0 ? 1 : static_cast<int64_t>(rank);
  if (dim < -n || dim >= n) return std::nullopt;
  return static_cast<size_t>(dim < 0 ? dim + n : dim);
}

std::optional<std::vector<bool>> dim_mask(const Arg& dims, size_t rank, bool empty_is_all) {
  auto list = integers(dims);
  if (!list) return std::nullopt;
  std::vector<bool> mask(rank, false);
  if (list->empty() && (empty_is_all || is_none(dims))) {
    mask.assign(rank, true);
    return mask;
  }
  for (int64_t d : *list) {
    auto w = wrap_dim(d, rank);
    if (!w) return std::nullopt;
    if (rank == 0) continue;
    if (mask[*w]) return std::nullopt;
    mask[*w] = true;
  }
  return mask;
}

// ---------------------------------------------------------------- dtypes
bool is_complex(DType d) { return info(d).complex; }
bool is_integral_or_bool(DType d) { return is_integral(d) || d == DType::kBool; }

DType to_real(DType d) {
  switch (d) {
    case DType::kC32:
      return DType::kF16;
    case DType::kC64:
      return DType::kF32;
    case DType::kC128:
      return DType::kF64;
    default:
      return d;
  }
}

DType to_complex(DType d) {
  switch (d) {
    case DType::kF16:
      return DType::kC32;
    case DType::kF32:
    case DType::kBF16:
      return DType::kC64;
    case DType::kF64:
      return DType::kC128;
    default:
      return is_complex(d) ? d : DType::kUndefined;
  }
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (a == DType::kUndefined) return b;
  if (b == DType::kUndefined) return a;
  auto rare = [](DType d) {
    return d == DType::kF8E5M2 || d == DType::kF8E4M3 || d == DType::kU16 || d == DType::kU32 || d == DType::kU64;
  };
  if (rare(a) || rare(b)) return DType::kUndefined;
  if (is_complex(a) || is_complex(b)) {
    DType ra = to_real(a), rb = to_real(b);
    DType r = is_floating(ra) && is_floating(rb) ? promote(ra, rb) : is_floating(ra) ? ra : rb;
    return to_complex(r);
  }
  if (is_floating(a) || is_floating(b)) {
    if (!is_floating(a)) return b;
    if (!is_floating(b)) return a;
    if (is_reduced(a) && is_reduced(b)) return DType::kF32;
    return info(a).bytes >= info(b).bytes ? a : b;
  }
  if (a == DType::kBool) return b;
  if (b == DType::kBool) return a;
  if (info(a).is_signed == info(b).is_signed) return info(a).bytes >= info(b).bytes ? a : b;
  DType s = info(a).is_signed ? a : b;  // the other one is u8
  return s == DType::kI8 ? DType::kI16 : s;
}

void Promotion::add(const TensorType& t) {
  if (t.wrapped_number) return add_number(t.dtype);
  DType& slot = t.rank() > 0 ? dim_ : zero_;
  slot = promote(slot, t.dtype);
}

void Promotion::add_number(DType d) {
  if (is_complex(d)) d = to_complex(default_);
  if (is_floating(d)) d = default_;
  wrapped_ = promote(wrapped_, d);
}

DType Promotion::result() const {
  auto combine = [](DType higher, DType lower) {
    if (higher == DType::kUndefined) return lower;
    if (lower == DType::kUndefined || is_complex(higher)) return higher;
    if (is_floating(higher)) return is_complex(lower) ? to_complex(higher) : higher;
    if (higher == DType::kBool || is_floating(lower) || is_complex(lower)) return promote(higher, lower);
    return higher;
  };
  return combine(dim_, combine(zero_, wrapped_));
}

bool can_cast(DType from, DType to) {
  if (is_complex(from) && !is_complex(to)) return false;
  if (is_floating(from) && is_int(to)) return false;
  if (from != DType::kBool && to == DType::kBool) return false;
  return true;
}

// ---------------------------------------------------------------- layouts
std::optional<Ints> ints(const Sizes& s) {
  Ints v(s.size());
  for (size_t i = 0; i < s.size(); ++i) {
    if (!s[i].is_const()) return std::nullopt;
    v[i] = s[i].value();
  }
  return v;
}

Sizes exprs(const Ints& v) { return Sizes(v.begin(), v.end()); }

bool has_zero_size(const TensorType& t) {
  return std::any_of(t.sizes.begin(), t.sizes.end(), [](Expr e) { return e.is_const(0); });
}

bool has_empty_image(const TensorType& t, size_t n) {
  return std::any_of(t.sizes.begin() + (t.rank() == n + 2 ? 1 : 0), t.sizes.end(),
                     [](Expr e) { return e.is_const(0); });
}

bool known_sizes(const TensorType& t) {
  auto number = [](Expr e) { return e.is_const(); };
  return std::all_of(t.sizes.begin(), t.sizes.end(), number) && std::all_of(t.strides.begin(), t.strides.end(), number);
}

bool contiguous(const TensorType& t) {
  if (has_zero_size(t)) return true;
  Expr expected = 1;
  for (size_t i = t.rank(); i-- > 0;) {
    if (t.sizes[i].is_const(1)) continue;
    if (!sym::known_eq(t.strides[i], expected)) return false;
    expected *= t.sizes[i];
  }
  return true;
}

namespace {
constexpr std::array<size_t, 4> kLast2d{1, 3, 2, 0};
constexpr std::array<size_t, 5> kLast3d{1, 4, 3, 2, 0};
std::span<const size_t> last_order(size_t rank) {
  if (rank == 4) return kLast2d;
  if (rank == 5) return kLast3d;
  return {};
}

// The order of dims, fastest first, by the stable insertion sort of TensorIterator. compare(a, b) > 0: b goes before a.
template <typename Compare>
Ints sort_dims(size_t rank, Compare compare) {
  Ints perm(rank);
  for (size_t i = 0; i < rank; ++i) perm[i] = static_cast<int64_t>(rank - 1 - i);
  for (size_t i = 1; i < rank; ++i) {
    size_t at = i;
    for (size_t j = i; j-- > 0;) {
      int c = compare(perm[j], perm[at]);
      if (c > 0) {
        std::swap(perm[j], perm[at]);
        at = j;
      } else if (c < 0) {
        break;
      }
    }
  }
  return perm;
}
}  // namespace

namespace {
// Comparisons of which one that nobody can decide makes the whole unknown.
struct Comparison {
  bool known = true;
  bool less(Expr a, Expr b) {
    if (sym::known_lt(a, b)) return true;
    known = known && sym::known_le(b, a);
    return false;
  }
  bool equal(Expr a, Expr b) {
    if (sym::known_eq(a, b)) return true;
    known = known && sym::known_ne(a, b);
    return false;
  }
};
}  // namespace

bool channels_last_contiguous(const TensorType& t) {
  auto order = last_order(t.rank());
  if (order.empty()) return false;
  Expr expected = 1;
  for (size_t d : order) {
    if (t.sizes[d].is_const(1)) continue;
    if (!sym::known_eq(t.strides[d], expected)) return false;
    expected *= t.sizes[d];
  }
  return true;
}

bool non_overlapping_and_dense(const TensorType& t) {
  if (contiguous(t) || channels_last_contiguous(t)) return true;
  const sym::LayoutScope layout;
  Comparison c;
  std::vector<size_t> left;  // dims of no size below 2
  for (size_t d = 0; d < t.rank(); ++d)
    if (!c.less(t.sizes[d], 2)) left.push_back(d);
  // Of those that are left, the one with the smallest stride goes on where the ones before it end.
  Expr expected = 1;
  while (!left.empty()) {
    size_t least = 0;
    for (size_t i = 1; i < left.size(); ++i)
      if (c.less(t.strides[left[i]], t.strides[left[least]])) least = i;
    if (!c.equal(t.strides[left[least]], expected) || !c.known) return false;
    expected *= t.sizes[left[least]];
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(least));
  }
  return c.known;
}

bool repeats(const TensorType& t) {
  for (size_t d = 0; d < t.rank(); ++d)
    if (t.strides[d].is_const(0) && !t.sizes[d].is_const(1)) return true;
  return false;
}

// Strides sorted, each reaching past what the smaller ones cover.
bool overlaps_itself(const Sizes& sizes, const Sizes& strides) {
  std::vector<size_t> order;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (!sizes[i].is_const(1)) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return is_smaller_stride(strides[a], strides[b]); });
  sym::Expr reach = 0;
  for (size_t i : order) {
    if (!sym::known_lt(reach, strides[i])) return true;
    reach += (sizes[i] - 1) * strides[i];
  }
  return false;
}

MemoryFormat suggest_format(const TensorType& t) {
  auto order = last_order(t.rank());
  if (order.empty()) return MemoryFormat::kContiguous;
  const sym::LayoutScope layout;
  Comparison c;
  Expr low = 0;
  if (t.strides[1].is_const(0)) return MemoryFormat::kContiguous;
  for (size_t d : order) {
    if (t.sizes[d].is_const(0) || c.less(t.strides[d], low)) return MemoryFormat::kContiguous;
    if (d == 0 && c.equal(low, t.strides[1])) return MemoryFormat::kContiguous;
    low = t.strides[d];
    if (!t.sizes[d].is_const(1)) low *= t.sizes[d];
  }
  if (!c.known && !channels_last_contiguous(t)) return MemoryFormat::kContiguous;
  return t.rank() == 4 ? MemoryFormat::kChannelsLast : MemoryFormat::kChannelsLast3d;
}

std::optional<Sizes> format_strides(const Sizes& sizes, MemoryFormat f) {
  if (f == MemoryFormat::kContiguous) return contiguous_strides(sizes);
  if (f == MemoryFormat::kPreserve) return std::nullopt;
  size_t rank = f == MemoryFormat::kChannelsLast ? 4 : 5;
  if (sizes.size() != rank) return std::nullopt;
  Sizes strides(rank);
  Expr next = 1;
  for (size_t d : last_order(rank)) {
    strides[d] = next;
    next *= sizes[d];
  }
  return strides;
}

std::optional<Sizes> preserved_strides(const TensorType& t) {
  if (non_overlapping_and_dense(t)) return t.strides;
  size_t rank = t.rank();
  if (rank == 0) return Sizes{};
  if (rank == 1) return Sizes{1};
  const sym::LayoutScope layout;
  Comparison c;
  Ints perm = sort_dims(rank, [&](int64_t a, int64_t b) {
    const Expr sa = t.strides[a], sb = t.strides[b];
    if (c.equal(sa, 0) || c.equal(sb, 0)) return 0;
    if (!c.equal(sa, sb)) return c.less(sa, sb) ? -1 : 1;
    return c.less(t.sizes[b], t.sizes[a]) ? 1 : 0;
  });
  if (!c.known) return std::nullopt;
  Sizes result(rank);
  Expr next = 1;
  for (int64_t d : perm) {
    result[d] = next;
    if (!t.sizes[d].is_const(0)) next *= t.sizes[d];
  }
  return result;
}

TensorType fresh(const TensorType& like, DType dtype, Sizes sizes) {
  TensorType t;
  t.dtype = dtype;
  t.device = like.device;
  t.strides = contiguous_strides(sizes);
  t.sizes = std::move(sizes);
  return t;
}

bool fresh_like(const TensorType& like, DType dtype, std::optional<MemoryFormat> f, TensorType& out) {
  auto strides = f.value_or(MemoryFormat::kPreserve) == MemoryFormat::kPreserve ? preserved_strides(like)
                                                                                : format_strides(like.sizes, *f);
  if (!strides) return false;
  out = TensorType{};
  out.dtype = dtype;
  out.device = like.device;
  out.sizes = like.sizes;
  out.strides = *strides;
  return true;
}

bool is_index(const TensorType& t) { return t.dtype == DType::kI64 || t.dtype == DType::kI32; }

bool fits_classes(const TensorType* weight, Expr classes) {
  return !weight || (weight->rank() == 1 && sym::known_eq(weight->sizes[0], classes));
}

std::optional<Sizes> broadcast(const Sizes& a, const Sizes& b) {
  const Sizes& longer = a.size() >= b.size() ? a : b;
  const Sizes& shorter = a.size() >= b.size() ? b : a;
  Sizes r = longer;
  size_t shift = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    Expr x = longer[shift + i], y = shorter[i];
    if (x == y || y.is_const(1)) continue;
    if (x.is_const(1))
      r[shift + i] = y;
    else if (!sym::known_eq(x, y))
      return std::nullopt;
  }
  return r;
}

bool iterate(std::span<const TensorType* const> operands, TensorType& out) {
  bool same_shape = true;
  Sizes sizes = operands[0]->sizes;
  for (const TensorType* t : operands.subspan(1)) {
    if (same_sizes(t->sizes, sizes)) continue;
    same_shape = false;
    auto b = broadcast(sizes, t->sizes);
    if (!b) return false;
    sizes = std::move(*b);
  }
  out.sizes = sizes;
  const sym::LayoutScope layout;
  auto all = [&](auto&& f) { return std::all_of(operands.begin(), operands.end(), [&](auto* t) { return f(*t); }); };
  if (same_shape) {  // the fast set-up
    if (all(contiguous)) {
      out.strides = contiguous_strides(sizes);
      return true;
    }
    if (sizes.size() == 4 && all(channels_last_contiguous)) {
      out.strides = *format_strides(sizes, MemoryFormat::kChannelsLast);
      return true;
    }
    if (all(non_overlapping_and_dense) &&
        all([&](const TensorType& t) { return same_sizes(t.strides, operands[0]->strides); })) {
      out.strides = operands[0]->strides;
      return true;
    }
  }
  size_t rank = sizes.size();
  std::vector<Sizes> strides;
  for (const TensorType* t : operands) {
    Sizes s(rank, 0);
    size_t shift = rank - t->rank();
    for (size_t i = 0; i < t->rank(); ++i)
      if (!t->sizes[i].is_const(1) || sizes[shift + i].is_const(1)) s[shift + i] = t->strides[i];
    strides.push_back(std::move(s));
  }
  Comparison c;
  Ints perm = sort_dims(rank, [&](int64_t a, int64_t b) {
    for (const Sizes& s : strides) {
      if (c.equal(s[a], 0) || c.equal(s[b], 0)) continue;
      if (!c.equal(s[a], s[b])) return c.less(s[a], s[b]) ? -1 : 1;
      if (c.less(sizes[b], sizes[a])) return 1;
    }
    return 0;
  });
  if (!c.known) return false;
  bool row_major = true;
  for (size_t i = 0; i < rank; ++i) row_major &= perm[i] == static_cast<int64_t>(rank - 1 - i);
  if (row_major) {
    out.strides = contiguous_strides(sizes);
    return true;
  }
  out.strides.assign(rank, 0);
  Expr next = 1;
  for (int64_t d : perm) {
    out.strides[d] = next;
    next *= sizes[d];
  }
  return true;
}

bool iterate_promoted(std::span<const TensorType* const> operands, DType common, DType result, Types& outs) {
  if (common == DType::kUndefined || result == DType::kUndefined || operands.size() > 4) return false;
  std::array<TensorType, 4> copies;
  std::array<const TensorType*, 4> cast{};
  TensorType out;
  for (size_t i = 0; i < operands.size(); ++i) {
    cast[i] = operands[i];
    if (out.device == Device{} && operands[i]->rank() + !operands[i]->wrapped_number > 0)
      out.device = operands[i]->device;
    if (operands[i]->dtype == common || operands[i]->rank() == 0) continue;
    if (!fresh_like(*operands[i], common, std::nullopt, copies[i])) return false;
    cast[i] = &copies[i];
  }
  out.dtype = result;
  return iterate({cast.data(), operands.size()}, out) && one(outs, std::move(out));
}

bool one(Types& outs, TensorType t) {
  outs.clear();
  outs.push_back(std::move(t));
  return true;
}

// ---------------------------------------------------------------- table
const char* keep(std::string text) {
  static auto* pool = new std::deque<std::string>;
  return pool->emplace_back(std::move(text)).c_str();
}

Row& Table::add(std::string_view name, OpKind kind, InferRule infer) {
  Row row;
  row.name = keep("aten." + std::string(name));
  row.kind = kind;
  row.infer = infer;
  rows_.push_back(row);
  return rows_.back();
}

bool infer_inplace(const InferContext& in, Types& outs, InferRule functional) {
  const TensorType* self = tensor(in, 0);
  if (!self || !functional(in, outs) || outs.size() != 1) return false;
  if (!same_sizes(outs[0].sizes, self->sizes) || !can_cast(outs[0].dtype, self->dtype)) return false;
  return one(outs, *self);
}

bool infer_out(const InferContext& in, Types& outs, InferRule functional, bool casts) {
  if (in.args.empty()) return false;
  const TensorType* out = tensor(in, in.args.size() - 1);
  InferContext inner = in;
  inner.args = in.args.first(in.args.size() - 1);
  if (!out || !functional(inner, outs) || outs.size() != 1) return false;
  if (!same_sizes(outs[0].sizes, out->sizes)) return false;
  if (outs[0].dtype != out->dtype && !(casts && can_cast(outs[0].dtype, out->dtype))) return false;
  return one(outs, *out);
}

}  // namespace flashover::ops::aten
