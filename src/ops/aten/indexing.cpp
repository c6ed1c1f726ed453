// Data movement: gather, scatter, advanced indexing, cat, pad, flip, roll, repeat, embedding.
#include <algorithm>

#include "ops/aten/infer.h"
#include "ops/indexed_dims.h"
#include "sym/environment.h"

namespace flashover::ops::aten {
namespace {

bool dense_self(const TensorType& x, Types& outs) { return one(outs, fresh(x, x.dtype, x.sizes)); }
bool clone_like(const TensorType& x, Types& outs) {
  TensorType out;
  return fresh_like(x, x.dtype, std::nullopt, out) && one(outs, std::move(out));
}

// Along all dims but the one that is indexed, index has no more places than x. (Eager raises else.)
bool index_fits(const TensorType& index, const TensorType& x, std::optional<int64_t> dim) {
  if (index.rank() != x.rank() || has_zero_size(index)) return true;
  const auto but = dim ? wrap_dim(*dim, x.rank()) : std::nullopt;
  for (size_t d = 0; d < x.rank(); ++d)
    if (d != but && !sym::known_le(index.sizes[d], x.sizes[d])) return false;
  return true;
}

bool gather(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *index = tensor(in, 2);
  if (!x || !index || !is_index(*index)) return false;
  if (x->rank() != index->rank() && !has_zero_size(*index)) return false;
  if (!index_fits(*index, *x, integer(arg(in, 1)))) return false;
  return one(outs, fresh(*x, x->dtype, index->sizes));
}
bool scatter(In in, Types& outs) {  // (self, dim, index, src or value, ...)
  const TensorType *x = tensor(in, 0), *index = tensor(in, 2), *src = tensor(in, 3);
  if (!x || !index || !is_index(*index) || (src && src->dtype != x->dtype)) return false;
  if (!index_fits(*index, *x, integer(arg(in, 1))) || (src && !index_fits(*index, *src, std::nullopt))) return false;
  return dense_self(*x, outs);
}
bool index_select(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *index = tensor(in, 2);
  auto dim = integer(arg(in, 1));
  if (!x || !index || !dim || !is_index(*index) || index->rank() > 1) return false;
  auto d = wrap_dim(*dim, x->rank());
  if (!d) return false;
  Sizes sizes = x->sizes;
  if (x->rank() > 0) sizes[*d] = index->rank() == 0 ? Expr(1) : index->sizes[0];
  return one(outs, fresh(*x, x->dtype, sizes));
}
bool same_as_clone(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  return x && clone_like(*x, outs);
}
bool index_copy(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *src = tensor(in, 3);
  return x && src && src->dtype == x->dtype && dense_self(*x, outs);
}

// Of a dim without elements nothing may be asked for; eager raises else. (Where an index is as long as data say, and
// each of its elements is read, that one is out of bounds.)
bool asks_for_no_elements(const TensorType& x, const std::vector<const TensorType*>& indices, const Sizes& shape) {
  bool indexed = false, kept = false;  // such dims
  for (size_t d = 0; d < x.rank(); ++d)
    if (x.sizes[d].is_const(0)) (indices[d] ? indexed : kept) = true;
  if (!indexed || std::ranges::any_of(shape, [](Expr e) { return e.is_const(0); })) return true;
  return !kept && std::ranges::any_of(shape, sym::has_data_size);
}

// Advanced indexing: the indexed dims, made adjacent, are replaced by the broadcast index; TensorIterator then lays out
// the result from the source with stride 0 there and from the indices.
bool index(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto list = tensors(in, 1);
  if (!x || !list || list->empty() || list->size() > x->rank()) return false;
  std::vector<const TensorType*> indices = *list;
  indices.resize(x->rank(), nullptr);
  std::optional<Sizes> shape;
  for (const TensorType* t : indices) {
    if (!t) continue;
    if (!is_index(*t)) return false;  // bool masks: data-dependent
    shape = shape ? broadcast(*shape, t->sizes) : t->sizes;
    if (!shape) return false;
  }
  if (!shape || !asks_for_no_elements(*x, indices, *shape)) return false;
  // expand_outplace gives every index the common size.
  std::vector<TensorType> expanded;
  for (size_t d = 0; d < x->rank(); ++d) {
    if (!indices[d]) continue;
    TensorType t = *indices[d];
    size_t shift = shape->size() - t.rank();
    Sizes strides(shape->size(), 0);
    for (size_t i = 0; i < t.rank(); ++i)
      strides[shift + i] = t.sizes[i].is_const(1) && !(*shape)[shift + i].is_const(1) ? Expr(0) : t.strides[i];
    t.sizes = *shape;
    t.strides = strides;
    expanded.push_back(std::move(t));
  }
  const IndexedDims indexed = indexed_dims(indices.size(), [&](size_t d) { return indices[d] != nullptr; });
  Sizes source_sizes, source_strides;
  size_t before = 0;
  auto keep = [&](size_t d) {
    source_sizes.push_back(x->sizes[d]);
    source_strides.push_back(x->strides[d]);
  };
  if (indexed.adjacent)
    for (size_t d = 0; d < indexed.first; ++d) keep(d);
  before = source_sizes.size();
  source_sizes.insert(source_sizes.end(), shape->begin(), shape->end());
  source_strides.insert(source_strides.end(), shape->size(), Expr(0));
  for (size_t d = indexed.adjacent ? indexed.last + 1 : 0; d < x->rank(); ++d)
    if (!indices[d]) keep(d);
  TensorType source = *x;
  source.sizes = source_sizes;
  source.strides = source_strides;
  size_t after = source_sizes.size() - before - shape->size();
  std::vector<const TensorType*> operands{&source};
  for (TensorType& t : expanded) {
    t.sizes.insert(t.sizes.begin(), before, Expr(1));
    t.strides.insert(t.strides.begin(), before, Expr(0));
    t.sizes.insert(t.sizes.end(), after, Expr(1));
    t.strides.insert(t.strides.end(), after, Expr(0));
    operands.push_back(&t);
  }
  TensorType out;
  out.dtype = x->dtype;
  out.device = x->device;
  return iterate(operands, out) && one(outs, std::move(out));
}
// A mask stands for as many dims as it has, of their sizes.
bool masks_fit(const TensorType& x, const std::vector<const TensorType*>& indices) {
  size_t at = 0;
  for (const TensorType* t : indices) {
    if (!t || is_index(*t)) {
      ++at;
      continue;
    }
    for (Expr size : t->sizes)
      if (at == x.rank() || !sym::known_eq(size, x.sizes[at++])) return false;
  }
  return at <= x.rank();
}
bool index_put(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *values = tensor(in, 2);
  const auto indices = tensors(in, 1);
  return x && values && indices && values->dtype == x->dtype && masks_fit(*x, *indices) && clone_like(*x, outs);
}

bool cat(In in, Types& outs) {
  auto list = tensors(in, 0);
  auto dim = integer(arg(in, 1));
  if (!list || list->empty() || !dim) return false;
  Promotion p(in.default_dtype);
  const TensorType* model = nullptr;
  std::optional<MemoryFormat> format;
  bool mixed = false;
  for (const TensorType* t : *list) {
    if (!t) return false;
    p.add(*t);
    MemoryFormat f = suggest_format(*t);
    if (f == MemoryFormat::kContiguous || (format && *format != f)) mixed = true;
    format = f;
    if (!(t->rank() == 1 && t->sizes[0].is_const(0)) && !model) model = t;
  }
  if (!model) model = (*list)[0];
  auto d = wrap_dim(*dim, model->rank());
  if (!d || model->rank() == 0) return false;
  Sizes sizes = model->sizes;
  sizes[*d] = 0;
  for (const TensorType* t : *list) {
    if (t->rank() == 1 && t->sizes[0].is_const(0) && model->rank() != 1) continue;
    if (t->rank() != model->rank()) return false;
    for (size_t i = 0; i < sizes.size(); ++i)
      if (i != *d && !sym::known_eq(t->sizes[i], sizes[i])) return false;
    sizes[*d] += t->sizes[*d];
  }
  DType dtype = p.result();
  if (dtype == DType::kUndefined) return false;
  auto strides = format_strides(sizes, mixed ? MemoryFormat::kContiguous : *format);
  if (!strides) return false;
  TensorType out = fresh(*model, dtype, sizes);
  out.strides = *strides;
  return one(outs, std::move(out));
}
bool stack(In in, Types& outs) {
  auto list = tensors(in, 0);
  auto dim = integer(arg(in, 1));
  if (!list || list->empty() || !dim || !(*list)[0]) return false;
  const TensorType& model = *(*list)[0];
  auto d = wrap_dim(*dim, model.rank() + 1);
  Promotion p(in.default_dtype);
  for (const TensorType* t : *list) {
    if (!t || !same_sizes(t->sizes, model.sizes) || suggest_format(*t) != MemoryFormat::kContiguous) return false;
    p.add(*t);
  }
  if (!d || p.result() == DType::kUndefined) return false;
  Sizes sizes = model.sizes;
  sizes.insert(sizes.begin() + static_cast<int64_t>(*d), Expr(static_cast<int64_t>(list->size())));
  return one(outs, fresh(model, p.result(), sizes));
}

std::optional<Sizes> padded(const TensorType& x, const Sizes& pad, size_t spatial) {
  if (pad.size() % 2 || pad.size() / 2 > x.rank() || (spatial && pad.size() != 2 * spatial)) return std::nullopt;
  Sizes sizes = x.sizes;
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    size_t d = x.rank() - 1 - i;
    sizes[d] = sizes[d] + pad[2 * i] + pad[2 * i + 1];
    if (!sym::known_le(0, sizes[d])) return std::nullopt;
  }
  return sizes;
}
// Of each amount it is asked whether it adds or cuts, unless one of them is known.
void ask_signs(const Sizes& pad) {
  for (Expr p : pad)
    if (!sym::follows(sym::Relation::kLessEqual, p, 0)) (void)sym::known_le(0, p);
}
bool constant_pad(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  const auto* list = std::get_if<Sizes>(&arg(in, 1));
  const auto numbers = integers(arg(in, 1));
  if (!x || (!list && !numbers)) return false;
  const Sizes pad = list ? *list : exprs(*numbers);
  ask_signs(pad);
  auto sizes = padded(*x, pad, 0);
  if (!sizes) return false;
  // What lies plainly does so as well where nothing is added.
  if (!numbers && contiguous(*x) && suggest_format(*x) == MemoryFormat::kContiguous)
    return one(outs, fresh(*x, x->dtype, *sizes));
  if (std::ranges::all_of(pad, [](Expr p) {
        return sym::follows(sym::Relation::kLessEqual, p, 0) || !sym::known_lt(0, p);
      })) {  // a clone of a narrowed view
    TensorType narrowed = *x;
    narrowed.sizes = *sizes;
    return clone_like(narrowed, outs);
  }
  auto strides = format_strides(*sizes, suggest_format(*x));
  if (!strides) return false;
  TensorType out = fresh(*x, x->dtype, *sizes);
  out.strides = *strides;
  return one(outs, std::move(out));
}
template <size_t n, bool reflect>
bool mirror_pad(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto pad = integers(arg(in, 1));
  if (!x || !pad || (x->rank() != n + 1 && x->rank() != n + 2) || has_zero_size(*x)) return false;
  if (!(is_floating(x->dtype) || is_complex(x->dtype))) return false;
  auto sizes = padded(*x, exprs(*pad), n);
  if (!sizes) return false;
  for (size_t i = 0; i < 2 * n; ++i)
    if (reflect && !sym::known_lt((*pad)[i], x->sizes[x->rank() - 1 - i / 2])) return false;
  for (Expr e : *sizes)
    if (!sym::known_lt(0, e)) return false;
  TensorType out = fresh(*x, x->dtype, *sizes);
  // The CPU's kernels keep the format, those of CUDA (and the meta functions) know none.
  if (x->device.type == DeviceType::kCPU) {
    auto strides = format_strides(*sizes, suggest_format(*x));
    if (!strides) return false;
    out.strides = std::move(*strides);
  }
  return one(outs, std::move(out));
}

// (grad, self, padding): as mirror_pad, of a batch. CUDA's kernels for rows and columns write contiguous gradients.
template <size_t n>
bool mirror_pad_backward(In in, Types& outs) {
  const TensorType* x = tensor(in, 1);
  if (!x || x->rank() != n + 2) return false;
  if (x->device.type == DeviceType::kCUDA)
    return (n == 2 || (contiguous(*x) && suggest_format(*x) == MemoryFormat::kContiguous)) &&
           one(outs, fresh(*x, x->dtype, x->sizes));
  TensorType out;
  return x->device.type == DeviceType::kCPU && fresh_like(*x, x->dtype, suggest_format(*x), out) &&
         one(outs, std::move(out));
}

bool flip(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  const auto dims = integers(arg(in, 1));
  if (!x || !dims) return false;
  const auto known = [&](int64_t d) { return wrap_dim(d, x->rank()).has_value(); };  // torch raises for others
  return std::ranges::all_of(*dims, known) && same_as_clone(in, outs);
}
bool rot90(In in, Types& outs) {  // flips, then a transposed view
  const TensorType* x = tensor(in, 0);
  const auto k = integer(arg(in, 1));
  const auto dims = integers(arg(in, 2));
  if (!x || !k || !dims || dims->size() != 2) return false;
  const auto p = wrap_dim((*dims)[0], x->rank()), q = wrap_dim((*dims)[1], x->rank());
  if (!p || !q || *p == *q) return false;
  if (*k % 4 == 0) return one(outs, fresh(*x, x->dtype, x->sizes));
  if (!clone_like(*x, outs)) return false;
  if (*k % 2 != 0) {
    std::swap(outs[0].sizes[*p], outs[0].sizes[*q]);
    std::swap(outs[0].strides[*p], outs[0].strides[*q]);
  }
  return true;
}
bool known_sizes_of(const Sizes& a, const Sizes& b) {
  const auto constant = [](Expr e) { return e.is_const(); };
  return std::ranges::all_of(a, constant) && std::ranges::all_of(b, constant);
}
bool roll(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto shifts = integers(arg(in, 1)), dims = integers(arg(in, 2));
  // Torch raises for dimensions that are not there. Places are taken modulo the sizes, which must not be 0 for that.
  if (x && dims)
    for (int64_t d : *dims)
      if (const auto at = wrap_dim(d, x->rank()); x->rank() == 0 || !at || x->sizes[*at].is_const(0)) return false;
  if (const auto places = size_list(arg(in, 1)); x && places && dims && !known_sizes_of(*places, x->sizes)) {
    // What is known of where the two parts meet, for the decomposition.
    if (places->size() != (dims->empty() ? 1 : dims->size())) return false;
    for (size_t i = 0; i < places->size(); ++i) {
      const auto d = dims->empty() ? std::optional<size_t>() : wrap_dim((*dims)[i], x->rank());
      const Expr size = dims->empty() ? x->numel() : d ? x->sizes[*d] : Expr(0);
      if (!sym::known_lt(0, size) || !sym::known_le(sym::mod((*places)[i], size), size)) return false;
    }
    if (suggest_format(*x) != MemoryFormat::kContiguous) return false;
    return dense_self(*x, outs);
  }
  if (!x || !shifts || !dims || shifts->size() != (dims->empty() ? 1 : dims->size())) return false;
  if (dims->empty() || suggest_format(*x) == MemoryFormat::kContiguous) {
    for (Expr e : x->sizes)
      if (e.is_const(0)) return same_as_clone(in, outs);
    return dense_self(*x, outs);
  }
  // Dim by dim two slices are concatenated, and cat looks at the format of each.
  if (dims->size() != shifts->size()) return false;
  TensorType now = *x;
  for (size_t i = 0; i < dims->size(); ++i) {
    const auto d = wrap_dim((*dims)[i], now.rank());
    if (!d || !now.sizes[*d].is_const()) return false;
    const int64_t size = now.sizes[*d].value(), start = (((size - (*shifts)[i]) % size) + size) % size;
    TensorType first = now, second = now;
    first.sizes[*d] = size - start;
    second.sizes[*d] = start;
    const MemoryFormat f = suggest_format(first);
    const auto strides = format_strides(now.sizes, f == suggest_format(second) ? f : MemoryFormat::kContiguous);
    if (!strides) return false;
    now.strides = *strides;
  }
  TensorType out = fresh(*x, x->dtype, x->sizes);
  out.strides = now.strides;
  return one(outs, std::move(out));
}
bool triangle(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  return x && x->rank() >= 2 && dense_self(*x, outs);
}
bool repeat(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto* repeats = std::get_if<Sizes>(&arg(in, 1));
  if (!x || !repeats || repeats->size() < x->rank()) return false;
  Sizes sizes = *repeats;
  size_t shift = sizes.size() - x->rank();
  for (size_t i = 0; i < x->rank(); ++i) sizes[shift + i] *= x->sizes[i];
  for (Expr e : sizes)
    if (!sym::known_le(0, e)) return false;
  return one(outs, fresh(*x, x->dtype, sizes));
}

bool embedding(In in, Types& outs) {
  const TensorType *w = tensor(in, 0), *index = tensor(in, 1);
  if (!w || !index || w->rank() != 2 || !is_index(*index)) return false;
  Sizes sizes = index->sizes;
  sizes.push_back(w->sizes[1]);
  return one(outs, fresh(*w, w->dtype, sizes));
}

template <size_t self, size_t out_int32>
bool search(In in, Types& outs) {  // bucketize, searchsorted
  const TensorType* x = tensor(in, self);
  if (!x) return false;
  return one(outs, fresh(*x, flag(arg(in, out_int32)) ? DType::kI32 : DType::kI64, x->sizes));
}

// Which elements are among others; of a number, a truth without dimensions (ATen's meta function gives it one).
bool is_in(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *among = tensor(in, 1);
  for (const TensorType* t : {x, among})
    if (t && (is_complex(t->dtype) || t->dtype == DType::kBool)) return false;  // eager refuses
  return (x || among) && one(outs, fresh(x ? *x : *among, DType::kBool, x ? x->sizes : Sizes()));
}

bool channel_shuffle(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  if (!x || x->rank() < 3 || has_zero_size(*x)) return false;
  TensorType out = fresh(*x, x->dtype, x->sizes);
  if (x->device.type == DeviceType::kCPU) {  // its kernel keeps the format
    auto strides = format_strides(x->sizes, suggest_format(*x));
    if (!strides) return false;
    out.strides = std::move(*strides);
  } else if (!contiguous(*x)) {
    return false;
  }
  return one(outs, std::move(out));
}
template <bool up>
bool pixel_shuffle(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto r = integer(arg(in, 1));
  if (!x || !r || *r < 1 || x->rank() < 3 || has_zero_size(*x)) return false;
  // The CPU's kernels keep the format; elsewhere they are reshapes.
  const MemoryFormat format = suggest_format(*x);
  const bool keeps = x->device.type == DeviceType::kCPU && (format == MemoryFormat::kContiguous || x->rank() == 4);
  Sizes s = x->sizes;
  size_t n = s.size();
  // Channels that lie last become rows and columns in memory of their own, but where there is one of those.
  const bool copies = up && *r > 1 && x->device.type == DeviceType::kCUDA && format == MemoryFormat::kChannelsLast &&
                      sym::known_lt(1, s[n - 2]) && sym::known_lt(1, s[n - 1]);
  if (!keeps && !copies && (!contiguous(*x) || format != MemoryFormat::kContiguous)) return false;
  if (!up && (!sym::known_divisible(s[n - 1], *r) || !sym::known_divisible(s[n - 2], *r))) return false;
  if (up && !sym::known_divisible(s[n - 3], *r * *r)) return false;
  s[n - 3] = up ? sym::floordiv(s[n - 3], *r * *r) : s[n - 3] * (*r * *r);
  s[n - 2] = up ? s[n - 2] * *r : sym::floordiv(s[n - 2], *r);
  s[n - 1] = up ? s[n - 1] * *r : sym::floordiv(s[n - 1], *r);
  TensorType out = fresh(*x, x->dtype, s);
  auto strides = format_strides(s, copies ? MemoryFormat::kContiguous : format);
  if (!strides) return false;
  out.strides = std::move(*strides);
  return one(outs, std::move(out));
}
// The sizes of the view of argument 0 that the arguments from 2 on tell of.
std::optional<Sizes> viewed_sizes(In in, OpName view) {
  std::vector<Arg> args(in.args.begin(), in.args.end());
  args.erase(args.begin() + 1);
  Types out;
  const InferContext of_view{args, in.type_of, in.user, in.default_dtype};
  if (!find(view)->infer(of_view, out)) return std::nullopt;
  return out[0].sizes;
}

// slice_scatter, select_scatter ...: (self, src, ...), a clone of self that is written where `view` is.
template <const char* view>
bool put_like_clone(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *src = tensor(in, 1);
  if (!x || !src) return false;
  const std::optional<Sizes> written = OpName(view) == op::as_strided ? size_list(arg(in, 2)) : viewed_sizes(in, view);
  if (!written || !same_sizes(*written, src->sizes)) return false;
  // Of a tensor that is one memory in several places ATen makes a plain clone, else one of the whole storage.
  if (repeats(*x)) return clone_like(*x, outs);
  if (!non_overlapping_and_dense(*x) || !clone_like(*x, outs)) return false;
  outs[0].offset = x->offset;
  return true;
}
bool diag_embed(In in, Types& outs) {
  const TensorType* x = tensor(in, 0);
  auto offset = integer(arg(in, 1)), a = integer(arg(in, 2)), b = integer(arg(in, 3));
  if (!x || x->rank() == 0 || !offset || !a || !b) return false;
  size_t rank = x->rank() + 1;
  auto da = wrap_dim(*a, rank), db = wrap_dim(*b, rank);
  if (!da || !db || *da == *db) return false;
  Expr n = x->sizes.back() + std::abs(*offset);
  Sizes sizes(rank);
  size_t at = 0;
  for (size_t d = 0; d < rank; ++d) sizes[d] = d == *da || d == *db ? n : x->sizes[at++];
  return one(outs, fresh(*x, x->dtype, sizes));
}

// (weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx)
// -> output, offset2bag, bag_size, max_indices; what of the last three is filled depends on the way that is taken.
template <bool trained>
bool embedding_bag(In in, Types& outs) {
  const TensorType *w = tensor(in, 0), *indices = tensor(in, 1), *offsets = tensor(in, 2);
  const auto mode = integer(arg(in, 4)), padding = integer(arg(in, 8));
  if (!w || !indices || !offsets || !mode || !padding) return false;
  if (w->rank() != 2 || indices->rank() != 1 || offsets->rank() != 1 || has_zero_size(*indices)) return false;
  constexpr int64_t kSum = 0, kMax = 2;
  const TensorType* scale = tensor(in, 6);
  const bool single = w->dtype == DType::kF32 || is_reduced(w->dtype);
  const bool fast = *mode == kSum && single && contiguous(*w) && *padding < 0 && (!scale || contiguous(*scale));
  const Expr bags = flag(arg(in, 7)) ? offsets->sizes[0] - Expr(1) : offsets->sizes[0];
  const DType number = indices->dtype == DType::kI64 ? DType::kI64 : offsets->dtype;  // ATen brings both to the wider
  if (w->device.type != DeviceType::kCPU) {  // there all of them are filled but the largest
    outs = {fresh(*w, w->dtype, {bags, w->sizes[1]}), fresh(*w, number, {indices->sizes[0]}),
            fresh(*w, number, {offsets->sizes[0]}),
            fresh(*w, number, *mode == kMax ? Sizes{bags, w->sizes[1]} : Sizes{Expr(0)})};
    return true;
  }
  TensorType bag_size = fresh(*w, number, {trained || *mode != kSum ? bags : offsets->sizes[0]});
  TensorType largest = *mode == kMax ? fresh(*w, number, {bags, w->sizes[1]}) : bag_size;
  outs = {fresh(*w, w->dtype, {bags, w->sizes[1]}), fresh(*w, number, {fast ? Expr(0) : indices->sizes[0]}),
          std::move(bag_size), std::move(largest)};
  return true;
}

bool masked_scatter(In in, Types& outs) {
  const TensorType *x = tensor(in, 0), *mask = tensor(in, 1), *source = tensor(in, 2);
  if (!x || !mask || !source || mask->dtype != DType::kBool || source->dtype != x->dtype) return false;
  const auto sizes = broadcast(x->sizes, mask->sizes);
  return sizes && one(outs, fresh(*x, x->dtype, *sizes));
}

}  // namespace

void add_indexing(Table& t) {
  const auto kind = OpKind::kIndex;
  t.add("gather.default", kind, gather);
  auto scatters = [&](const char* op, const char* overload) { add_with_inplace<scatter>(t, op, overload, kind); };
  for (const char* overload : {"src", "value", "reduce", "value_reduce"}) scatters("scatter", overload);
  scatters("scatter_add", "default");
  scatters("scatter_reduce", "two");
  t.add("index_select.default", kind, index_select);
  t.add("masked_scatter.default", OpKind::kExtern, masked_scatter);
  add_with_inplace<index_copy>(t, "index_add", "default", kind);
  add_with_inplace<index_copy>(t, "index_copy", "default", kind);
  add_with_inplace<index_copy>(t, "index_reduce", "default", kind);
  add_with_inplace<same_as_clone>(t, "index_fill", "int_Scalar", kind);
  add_with_inplace<same_as_clone>(t, "index_fill", "int_Tensor", kind);
  t.add("index.Tensor", kind, index);
  t.add("_unsafe_index.Tensor", kind, index);
  add_with_inplace<index_put>(t, "index_put", "default", kind);
  t.add("_unsafe_index_put.default", kind, index_put);
  t.add("cat.default", kind, cat);
  t.add("stack.default", kind, stack);
  t.add("constant_pad_nd.default", kind, constant_pad);
  t.add("reflection_pad1d.default", kind, mirror_pad<1, true>);
  t.add("reflection_pad2d.default", kind, mirror_pad<2, true>);
  t.add("reflection_pad3d.default", kind, mirror_pad<3, true>);
  t.add("replication_pad1d.default", kind, mirror_pad<1, false>);
  t.add("replication_pad2d.default", kind, mirror_pad<2, false>);
  t.add("replication_pad3d.default", kind, mirror_pad<3, false>);
  for (const char* name : {"reflection_pad2d_backward.default", "replication_pad2d_backward.default"})
    t.add(name, OpKind::kExtern, mirror_pad_backward<2>);
  for (const char* name : {"reflection_pad3d_backward.default", "replication_pad3d_backward.default"})
    t.add(name, OpKind::kExtern, mirror_pad_backward<3>);
  t.add("flip.default", kind, flip);
  t.add("rot90.default", kind, rot90);
  t.add("roll.default", kind, roll);
  add_with_inplace<triangle>(t, "tril", "default", kind);
  add_with_inplace<triangle>(t, "triu", "default", kind);
  t.add("repeat.default", kind, repeat);
  t.add("embedding.default", kind, embedding);
  t.add("_embedding_bag.default", OpKind::kExtern, embedding_bag<true>);
  t.add("_embedding_bag_forward_only.default", OpKind::kExtern, embedding_bag<false>);
  t.add("bucketize.Tensor", OpKind::kExtern, search<0, 2>);
  t.add("searchsorted.Tensor", OpKind::kExtern, search<1, 2>);
  for (const char* name : {"isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor"})
    t.add(name, OpKind::kExtern, is_in);
  t.add("native_channel_shuffle.default", kind, channel_shuffle);
  t.add("channel_shuffle.default", kind, channel_shuffle);
  t.add("pixel_shuffle.default", kind, pixel_shuffle<true>);
  t.add("pixel_unshuffle.default", kind, pixel_shuffle<false>);
  t.add("slice_scatter.default", kind, put_like_clone<op::slice_Tensor>);
  t.add("select_scatter.default", kind, put_like_clone<op::select_int>);
  t.add("diagonal_scatter.default", kind, put_like_clone<op::diagonal>);
  t.add("as_strided_scatter.default", kind, put_like_clone<op::as_strided>);
  t.add("diag_embed.default", kind, diag_embed);
}

}  // namespace flashover::ops::aten
