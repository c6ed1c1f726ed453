// Rows and type rules of the closed set. Sizes and dtypes are binding; strides say which layout is natural (see
// prims.def).
#include <algorithm>

#include "ops/args.h"
#include "ops/indexed_dims.h"
#include "ops/ops.h"

namespace flashover::ops {
namespace {

using Types = std::vector<TensorType>;

TensorType make(DType dtype, const TensorType& like, Sizes sizes, Sizes strides) {
  TensorType t;
  t.dtype = dtype;
  t.device = like.device;
  t.sizes = std::move(sizes);
  t.strides = std::move(strides);
  return t;
}
TensorType make_dense(DType dtype, const TensorType& like, Sizes sizes) {
  Sizes strides = contiguous_strides(sizes);
  return make(dtype, like, std::move(sizes), std::move(strides));
}

// The layout of the first operand that has one (no gaps, no repetition), else the order of the first operand's dims.
Sizes common_layout(const InferContext& in, size_t operands) {
  const TensorType& first = in.type(size_t{0});
  for (size_t i = 0; i < operands; ++i)
    if (in.has_tensor(i) && is_dense(in.type(i).sizes, in.type(i).strides)) return in.type(i).strides;
  return dense_like(first.sizes, first.strides);
}

void check_same(const InferContext& in, size_t a, size_t b, bool dtypes = true) {
  const TensorType &x = in.type(a), &y = in.type(b);
  FLASHOVER_CHECK(same_sizes(x.sizes, y.sizes)) << "operand sizes differ: " << str(x) << " and " << str(y);
  FLASHOVER_CHECK(!dtypes || x.dtype == y.dtype) << "operand dtypes differ: " << str(x) << " and " << str(y);
}

bool unary(const InferContext& in, Types& outs) {
  const TensorType& x = in.type(size_t{0});
  outs.push_back(make(x.dtype, x, x.sizes, common_layout(in, 1)));
  return true;
}
bool unary_bool(const InferContext& in, Types& outs) {
  unary(in, outs);
  outs[0].dtype = DType::kBool;
  return true;
}
bool abs(const InferContext& in, Types& outs) {
  unary(in, outs);
  DType& d = outs[0].dtype;
  if (info(d).complex) d = d == DType::kC128 ? DType::kF64 : d == DType::kC64 ? DType::kF32 : DType::kF16;
  return true;
}
bool convert(const InferContext& in, Types& outs) {
  unary(in, outs);
  outs[0].dtype = as_dtype(in.args[1]);
  return true;
}
bool binary(const InferContext& in, Types& outs) {
  check_same(in, 0, 1);
  const TensorType& x = in.type(size_t{0});
  outs.push_back(make(x.dtype, x, x.sizes, common_layout(in, 2)));
  return true;
}
bool compare(const InferContext& in, Types& outs) {
  binary(in, outs);
  outs[0].dtype = DType::kBool;
  return true;
}
bool where(const InferContext& in, Types& outs) {
  FLASHOVER_CHECK(in.type(size_t{0}).dtype == DType::kBool) << "where: condition must be b8";
  check_same(in, 0, 1, false);
  check_same(in, 1, 2);
  const TensorType& x = in.type(size_t{1});
  Sizes strides = is_dense(x.sizes, x.strides) ? x.strides : common_layout(in, 3);
  outs.push_back(make(x.dtype, x, x.sizes, std::move(strides)));
  return true;
}
bool fma(const InferContext& in, Types& outs) {
  check_same(in, 1, 2);
  return binary(in, outs);
}

bool full(const InferContext& in, Types& outs) {
  TensorType like;
  like.device = as_device(in.args[3]);
  outs.push_back(make_dense(as_dtype(in.args[2]), like, as_sizes(in.args[0])));
  return true;
}
bool random(const InferContext& in, Types& outs) {
  const TensorType& state = in.type(size_t{0});
  FLASHOVER_CHECK(state.dtype == DType::kI64 && state.rank() == 1) << "a generator's state is i64[2]";
  outs.push_back(make_dense(DType::kF32, state, as_sizes(in.args[1])));
  return true;
}
bool philox_state(const InferContext& in, Types& outs) {
  TensorType like;
  like.device = as_device(in.args[1]);
  outs.push_back(make_dense(DType::kI64, like, {2}));
  return true;
}
bool iota(const InferContext& in, Types& outs) {
  TensorType like;
  like.device = as_device(in.args[4]);
  outs.push_back(make_dense(as_dtype(in.args[3]), like, {as_expr(in.args[0])}));
  return true;
}

bool broadcast(const InferContext& in, Types& outs) {
  const TensorType& x = in.type(size_t{0});
  Sizes sizes = as_sizes(in.args[1]);
  const std::vector<int64_t> dims = as_ints(in.args[2]);
  FLASHOVER_CHECK(dims.size() == x.rank()) << "broadcast: one output dim per input dim";
  Sizes strides(sizes.size(), 0);
  for (size_t i = 0; i < dims.size(); ++i) {
    FLASHOVER_CHECK(dims[i] >= 0 && dims[i] < static_cast<int64_t>(sizes.size()) && (i == 0 || dims[i] > dims[i - 1]))
        << "broadcast: dims must be increasing and in range";
    const sym::Expr n = sizes[dims[i]];
    const bool stretched = x.sizes[i].is_const(1) && !n.is_const(1);
    FLASHOVER_CHECK(stretched || sym::known_eq(x.sizes[i], n))
        << "broadcast: " << str(x) << " does not fit " << n.str();
    if (!stretched) strides[dims[i]] = x.strides[i];
  }
  outs.push_back(make(x.dtype, x, std::move(sizes), std::move(strides)));
  return true;
}
bool permute(const InferContext& in, Types& outs) {
  const TensorType& x = in.type(size_t{0});
  const std::vector<int64_t> dims = as_ints(in.args[1]);
  FLASHOVER_CHECK(dims.size() == x.rank()) << "permute: one entry per dim";
  std::vector<bool> seen(dims.size());
  Sizes sizes, strides;
  for (int64_t d : dims) {
    FLASHOVER_CHECK(d >= 0 && d < static_cast<int64_t>(seen.size()) && !seen[d]) << "permute: not a permutation";
    seen[d] = true;
    sizes.push_back(x.sizes[d]);
    strides.push_back(x.strides[d]);
  }
  outs.push_back(make(x.dtype, x, std::move(sizes), std::move(strides)));
  return true;
}
bool reshape(const InferContext& in, Types& outs) {
  const TensorType& x = in.type(size_t{0});
  Sizes sizes = as_sizes(in.args[1]);
  FLASHOVER_CHECK(sym::known_eq(x.numel(), sym::product(sizes)))
      << "reshape: " << str(x) << " has another number of elements";
  Sizes strides = view_strides(x, sizes).value_or(contiguous_strides(sizes));
  outs.push_back(make(x.dtype, x, std::move(sizes), std::move(strides)));
  return true;
}
// starts, ends, steps at args[first...]: sizes of that slice of x.
Sizes slice_sizes(const InferContext& in, const TensorType& x, size_t first, Sizes* strides) {
  const Sizes starts = as_sizes(in.args[first]), ends = as_sizes(in.args[first + 1]),
              steps = as_sizes(in.args[first + 2]);
  FLASHOVER_CHECK(starts.size() == x.rank() && ends.size() == x.rank() && steps.size() == x.rank())
      << "slice: one entry per dim";
  Sizes sizes;
  for (size_t i = 0; i < x.rank(); ++i) {
    sizes.push_back(sym::ceildiv(ends[i] - starts[i], steps[i]));
    if (strides) strides->push_back(x.strides[i] * steps[i]);
  }
  return sizes;
}
bool slice(const InferContext& in, Types& outs) {
  const TensorType& x = in.type(size_t{0});
  Sizes strides;
  Sizes sizes = slice_sizes(in, x, 1, &strides);
  outs.push_back(make(x.dtype, x, std::move(sizes), std::move(strides)));
  return true;
}
bool diagonal(const InferContext& in, Types& outs) {
  const TensorType& x = in.type(size_t{0});
  const sym::Expr offset = as_expr(in.args[1]);
  const int64_t d1 = as_int(in.args[2]), d2 = as_int(in.args[3]);
  const auto rank = static_cast<int64_t>(x.rank());
  FLASHOVER_CHECK(d1 >= 0 && d1 < rank && d2 >= 0 && d2 < rank && d1 != d2) << "diagonal: bad dims";
  FLASHOVER_CHECK(offset.is_const()) << "diagonal: constant offset";
  Sizes sizes, strides;
  for (int64_t i = 0; i < rank; ++i)
    if (i != d1 && i != d2) {
      sizes.push_back(x.sizes[i]);
      strides.push_back(x.strides[i]);
    }
  const sym::Expr n =
      offset.value() >= 0 ? sym::min(x.sizes[d1], x.sizes[d2] - offset) : sym::min(x.sizes[d1] + offset, x.sizes[d2]);
  sizes.push_back(sym::max(n, 0));
  strides.push_back(x.strides[d1] + x.strides[d2]);
  outs.push_back(make(x.dtype, x, std::move(sizes), std::move(strides)));
  return true;
}
bool as_strided(const InferContext& in, Types& outs) {
  const TensorType& x = in.type(size_t{0});
  Sizes sizes = as_sizes(in.args[1]);
  Sizes strides = is_contiguous(x) ? as_sizes(in.args[2]) : contiguous_strides(sizes);
  outs.push_back(make(x.dtype, x, std::move(sizes), std::move(strides)));
  return true;
}

bool pad(const InferContext& in, Types& outs) {
  const TensorType& x = in.type(size_t{0});
  const Sizes lo = as_sizes(in.args[1]), hi = as_sizes(in.args[2]);
  FLASHOVER_CHECK(lo.size() == x.rank() && hi.size() == x.rank()) << "pad: one entry per dim";
  Sizes sizes;
  for (size_t i = 0; i < x.rank(); ++i) sizes.push_back(x.sizes[i] + lo[i] + hi[i]);
  Sizes strides = dense_like(sizes, x.strides);
  outs.push_back(make(x.dtype, x, std::move(sizes), std::move(strides)));
  return true;
}
bool cat(const InferContext& in, Types& outs) {
  const RefList list = as_values(in.args[0]);
  FLASHOVER_CHECK(!list.empty()) << "cat of nothing";
  const TensorType& first = in.value_type(list[0].id);
  const int64_t dim = as_int(in.args[1]);
  FLASHOVER_CHECK(dim >= 0 && dim < static_cast<int64_t>(first.rank())) << "cat: bad dim";
  Sizes sizes = first.sizes;
  for (size_t i = 1; i < list.size(); ++i) {
    const TensorType& x = in.value_type(list[i].id);
    FLASHOVER_CHECK(x.dtype == first.dtype && x.rank() == first.rank())
        << "cat: operands differ: " << str(first) << " and " << str(x);
    for (size_t d = 0; d < x.rank(); ++d)
      FLASHOVER_CHECK(static_cast<int64_t>(d) == dim || sym::known_eq(x.sizes[d], sizes[d]))
          << "cat: sizes differ: " << str(first) << " and " << str(x);
    sizes[dim] += x.sizes[dim];
  }
  Sizes strides = dense_like(sizes, first.strides);
  outs.push_back(make(first.dtype, first, std::move(sizes), std::move(strides)));
  return true;
}
bool gather(const InferContext& in, Types& outs) {
  const TensorType &x = in.type(size_t{0}), &index = in.type(size_t{2});
  FLASHOVER_CHECK(x.rank() == index.rank()) << "gather: ranks differ";
  outs.push_back(make_dense(x.dtype, x, index.sizes));
  return true;
}

// Sizes of x[list] in torch's advanced indexing.
Sizes indexed_sizes(const InferContext& in, const TensorType& x, const RefList& list) {
  FLASHOVER_CHECK(list.size() <= x.rank()) << "index: more indices than dims";
  Sizes index_sizes;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].id == kNoValue) continue;
    const TensorType& t = in.value_type(list[i].id);
    FLASHOVER_CHECK(is_integral(t.dtype)) << "index: integer indices only (masks are nonzero first)";
    index_sizes = broadcast_sizes(index_sizes, t.sizes);
  }
  const IndexedDims indexed = indexed_dims(list);
  FLASHOVER_CHECK(indexed.first < list.size()) << "index: no index tensor";
  Sizes sizes;
  if (!indexed.adjacent) sizes = index_sizes;
  for (size_t i = 0; i < x.rank(); ++i) {
    if (indexed.adjacent && i == indexed.first) sizes.insert(sizes.end(), index_sizes.begin(), index_sizes.end());
    if (i >= list.size() || list[i].id == kNoValue) sizes.push_back(x.sizes[i]);
  }
  return sizes;
}
bool index(const InferContext& in, Types& outs) {
  const TensorType& x = in.type(size_t{0});
  outs.push_back(make_dense(x.dtype, x, indexed_sizes(in, x, as_values(in.args[1]))));
  return true;
}
// The first operand with something replaced.
bool like_first(const InferContext& in, Types& outs) { return unary(in, outs); }
bool slice_scatter(const InferContext& in, Types& outs) {
  const Sizes sizes = slice_sizes(in, in.type(size_t{0}), 2, nullptr);
  FLASHOVER_CHECK(same_sizes(sizes, in.type(size_t{1}).sizes)) << "slice_scatter: src does not fill the slice";
  return unary(in, outs);
}

TensorType reduced(const InferContext& in, DType dtype) {
  const TensorType& x = in.type(size_t{0});
  const std::vector<int64_t> dims = as_ints(in.args[1]);
  for (size_t i = 0; i < dims.size(); ++i)
    FLASHOVER_CHECK(dims[i] >= 0 && dims[i] < static_cast<int64_t>(x.rank()) && (i == 0 || dims[i] > dims[i - 1]))
        << "reduction dims must be sorted, unique, in range";
  Sizes sizes, strides;
  for (size_t i = 0, next = 0; i < x.rank(); ++i) {
    if (next < dims.size() && dims[next] == static_cast<int64_t>(i)) {
      ++next;
      continue;
    }
    sizes.push_back(x.sizes[i]);
    strides.push_back(x.strides[i]);
  }
  Sizes dense = dense_like(sizes, strides);
  return make(dtype, x, std::move(sizes), std::move(dense));
}
bool reduce(const InferContext& in, Types& outs) {
  outs.push_back(reduced(in, in.type(size_t{0}).dtype));
  return true;
}
bool reduce_bool(const InferContext& in, Types& outs) {
  FLASHOVER_CHECK(in.type(size_t{0}).dtype == DType::kBool) << "any / all take b8";
  return reduce(in, outs);
}
bool reduce_arg(const InferContext& in, Types& outs) {
  outs.push_back(reduced(in, DType::kI64));
  return true;
}
bool var(const InferContext& in, Types& outs) {
  reduce(in, outs);
  return reduce(in, outs);
}
bool scan(const InferContext& in, Types& outs) {
  const int64_t dim = as_int(in.args[1]);
  FLASHOVER_CHECK(dim >= 0 && dim < static_cast<int64_t>(in.type(size_t{0}).rank())) << "scan: bad dim";
  return unary(in, outs);
}

Types pooled(const InferContext& in, const std::vector<int64_t>& dilation, bool ceil_mode) {
  const TensorType& x = in.type(size_t{0});
  const std::vector<int64_t> kernel = as_ints(in.args[1]), stride = as_ints(in.args[2]), padding = as_ints(in.args[3]);
  FLASHOVER_CHECK(kernel.size() <= x.rank() && stride.size() == kernel.size() && padding.size() == kernel.size() &&
                  dilation.size() == kernel.size())
      << "pool: one entry per spatial dim";
  Sizes sizes = x.sizes;
  for (size_t i = 0; i < kernel.size(); ++i) {
    sym::Expr& n = sizes[x.rank() - kernel.size() + i];
    const sym::Expr input = n;
    const sym::Expr span = n + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1;
    n = (ceil_mode ? sym::ceildiv(span, stride[i]) : sym::floordiv(span, stride[i])) + 1;
    // In ceil mode a window that would start in the right padding is left out.
    if (ceil_mode && !sym::known_lt((n - 1) * stride[i], input + padding[i])) {
      FLASHOVER_CHECK(sym::known_le(input + padding[i], (n - 1) * stride[i]))
          << "pool: ceil_mode with a size of which nothing is known";
      n = n - 1;
    }
  }
  Sizes strides = dense_like(sizes, x.strides);
  return {make(x.dtype, x, std::move(sizes), std::move(strides))};
}
bool max_pool(const InferContext& in, Types& outs) {
  outs = pooled(in, as_ints(in.args[4]), as_bool(in.args[5]));
  return true;
}
bool avg_pool(const InferContext& in, Types& outs) {
  outs = pooled(in, std::vector<int64_t>(as_ints(in.args[1]).size(), 1), as_bool(in.args[4]));
  return true;
}

struct Rule {
  Prim prim;
  InferRule infer;
};
// Prims without a row here: by kind and number of operands.
constexpr Rule kRules[] = {
    {Prim::abs, abs},
    {Prim::convert, convert},
    {Prim::logical_not, unary_bool},
    {Prim::isnan, unary_bool},
    {Prim::isinf, unary_bool},
    {Prim::signbit, unary_bool},
    {Prim::where, where},
    {Prim::fma, fma},
    {Prim::full, full},
    {Prim::iota, iota},
    {Prim::uniform, random},
    {Prim::normal, random},
    {Prim::broadcast, broadcast},
    {Prim::permute, permute},
    {Prim::reshape, reshape},
    {Prim::slice, slice},
    {Prim::flip, like_first},
    {Prim::diagonal, diagonal},
    {Prim::as_strided, as_strided},
    {Prim::pad, pad},
    {Prim::cat, cat},
    {Prim::gather, gather},
    {Prim::index, index},
    {Prim::index_put, like_first},
    {Prim::scatter, like_first},
    {Prim::slice_scatter, slice_scatter},
    {Prim::as_strided_scatter, like_first},
    {Prim::any, reduce_bool},
    {Prim::all, reduce_bool},
    {Prim::argmax, reduce_arg},
    {Prim::argmin, reduce_arg},
    {Prim::var, var},
    {Prim::max_pool, max_pool},
    {Prim::avg_pool, avg_pool},
    {Prim::eq, compare},
    {Prim::ne, compare},
    {Prim::lt, compare},
    {Prim::le, compare},
    {Prim::gt, compare},
    {Prim::ge, compare},
};

InferRule rule_for(Prim prim, OpKind kind, int arity) {
  for (const Rule& r : kRules)
    if (prim == r.prim) return r.infer;
  switch (kind) {
    case OpKind::kPointwise:
      return arity == 2 ? binary : unary;
    case OpKind::kReduction:
      return reduce;
    case OpKind::kScan:
      return scan;
    default:
      break;
  }
  FLASHOVER_CHECK(false) << name(prim) << " has no type rule";
  return nullptr;
}

}  // namespace

void register_prims(std::vector<Row>& rows) {
#define ROW(n, k, arity, work, traits)                                                          \
  rows.push_back({.name = name(Prim::n),                                                        \
                  .kind = OpKind::k,                                                            \
                  .infer = rule_for(Prim::n, OpKind::k, arity),                                 \
                  .prim = Prim::n,                                                              \
                  .cost = work,                                                                 \
                  .approximated = std::string_view(traits).find('~') != std::string_view::npos, \
                  .moves = std::string_view(traits).find('m') != std::string_view::npos});
#define POINTWISE(n, arity, types, work, traits, meaning) ROW(n, kPointwise, arity, work, traits)
#define PRIM(n, k, work, traits, meaning) ROW(n, k, 1, work, traits)
#include "ops/prims.def"
#undef ROW
  // What prim.uniform and normal start from (graph/passes/lower_random.h).
  rows.push_back({.name = "flashover.philox_state.default", .kind = OpKind::kRandom, .infer = philox_state});
}

}  // namespace flashover::ops
