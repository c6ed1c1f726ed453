// Matrix products: contiguous results of the operands' dtype.
#include "ops/aten/infer.h"

namespace flashover::ops::aten {
namespace {

bool eq(Expr a, Expr b) { return sym::known_eq(a, b); }
bool usable(const TensorType& a, const TensorType& b) { return a.dtype == b.dtype && a.dtype != DType::kBool; }

std::optional<Sizes> mm_sizes(const TensorType* a, const TensorType* b) {
  if (!a || !b || a->rank() != 2 || b->rank() != 2 || !usable(*a, *b) || !eq(a->sizes[1], b->sizes[0]))
    return std::nullopt;
  return Sizes{a->sizes[0], b->sizes[1]};
}
std::optional<Sizes> bmm_sizes(const TensorType* a, const TensorType* b) {
  if (!a || !b || a->rank() != 3 || b->rank() != 3 || !usable(*a, *b)) return std::nullopt;
  if (!eq(a->sizes[0], b->sizes[0]) || !eq(a->sizes[2], b->sizes[1])) return std::nullopt;
  return Sizes{a->sizes[0], a->sizes[1], b->sizes[2]};
}
// The addend must be of the same dtype and broadcast to the product.
bool added(const TensorType* self, const TensorType& a, const std::optional<Sizes>& sizes, Types& outs) {
  if (!self || !sizes || self->dtype != a.dtype) return false;
  auto b = broadcast(self->sizes, *sizes);
  return b && same_sizes(*b, *sizes) && one(outs, fresh(a, a.dtype, *sizes));
}

bool mm(In in, Types& outs) {
  auto sizes = mm_sizes(tensor(in, 0), tensor(in, 1));
  return sizes && one(outs, fresh(in.type(size_t{0}), in.type(size_t{0}).dtype, *sizes));
}
bool bmm(In in, Types& outs) {
  auto sizes = bmm_sizes(tensor(in, 0), tensor(in, 1));
  return sizes && one(outs, fresh(in.type(size_t{0}), in.type(size_t{0}).dtype, *sizes));
}
bool addmm(In in, Types& outs) {
  auto sizes = mm_sizes(tensor(in, 1), tensor(in, 2));
  return sizes && added(tensor(in, 0), in.type(size_t{1}), sizes, outs);
}
bool baddbmm(In in, Types& outs) {
  auto sizes = bmm_sizes(tensor(in, 1), tensor(in, 2));
  return sizes && added(tensor(in, 0), in.type(size_t{1}), sizes, outs);
}
bool addbmm(In in, Types& outs) {
  auto sizes = bmm_sizes(tensor(in, 1), tensor(in, 2));
  return sizes && added(tensor(in, 0), in.type(size_t{1}), Sizes{(*sizes)[1], (*sizes)[2]}, outs);
}
std::optional<Sizes> mv_sizes(const TensorType* m, const TensorType* v) {
  if (!m || !v || m->rank() != 2 || v->rank() != 1 || !usable(*m, *v) || !eq(m->sizes[1], v->sizes[0]))
    return std::nullopt;
  return Sizes{m->sizes[0]};
}
bool mv(In in, Types& outs) {
  auto sizes = mv_sizes(tensor(in, 0), tensor(in, 1));
  return sizes && one(outs, fresh(in.type(size_t{0}), in.type(size_t{0}).dtype, *sizes));
}
bool addmv(In in, Types& outs) {
  auto sizes = mv_sizes(tensor(in, 1), tensor(in, 2));
  return sizes && added(tensor(in, 0), in.type(size_t{1}), sizes, outs);
}
bool dot(In in, Types& outs) {
  const TensorType *a = tensor(in, 0), *b = tensor(in, 1);
  if (!a || !b || a->rank() != 1 || b->rank() != 1 || !usable(*a, *b) || !eq(a->sizes[0], b->sizes[0])) return false;
  return one(outs, fresh(*a, a->dtype, {}));
}

// Products of parts of a matrix each with another: where both are matrices, or neither is, a product for each part.
bool grouped_mm(In in, Types& outs) {
  const TensorType *a = tensor(in, 0), *b = tensor(in, 1), *ends = tensor(in, 2);
  if (!a || !b || a->dtype != b->dtype || (!is_reduced(a->dtype) && a->dtype != DType::kF32)) return false;
  if (a->rank() < 2 || a->rank() > 3 || b->rank() < 2 || b->rank() > 3) return false;
  if (!std::holds_alternative<None>(in.args[3])) return false;  // a bias
  if (const auto d = dtype_of(in.args[4]); d && *d != a->dtype) return false;
  const bool flat_a = a->rank() == 2, flat_b = b->rank() == 2, flat = flat_a || flat_b;
  if (flat != (ends != nullptr) || (ends && (ends->rank() != 1 || ends->dtype != DType::kI32))) return false;
  const int64_t per_line = 16 / info(a->dtype).bytes;
  const auto lines = [&](const TensorType& t) {  // whole ones, in rows or columns
    const size_t n = t.rank();
    const auto valid = [&](size_t one, size_t other) {
      return eq(t.strides[one], 1) && sym::known_le(t.sizes[one], t.strides[other]) &&
             sym::known_le(1, t.strides[other]) && sym::known_divisible(t.strides[other], per_line);
    };
    return valid(n - 1, n - 2) || valid(n - 2, n - 1);
  };
  if (!lines(*a) || !lines(*b)) return false;
  const Expr rows = a->sizes[a->rank() - 2], columns = b->sizes[b->rank() - 1];
  if (!(flat_a && flat_b) && !eq(a->sizes[a->rank() - 1], b->sizes[b->rank() - 2])) return false;
  TensorType out = *a;
  out.offset = 0;
  const Expr line = sym::floordiv(columns + (per_line - 1), per_line) * per_line;
  if (flat_a == flat_b) {
    if (!flat && !eq(a->sizes[0], b->sizes[0])) return false;
    out.sizes = {flat ? ends->sizes[0] : a->sizes[0], rows, columns};
    out.strides = {rows * line, line, 1};
  } else {
    if (!eq(ends->sizes[0], (flat_a ? b : a)->sizes[0])) return false;
    out.sizes = {rows, columns};
    out.strides = {line, 1};
  }
  return one(outs, std::move(out));
}

// (A, B, upper, left, unitriangular): LAPACK's result, columns first in each matrix.
bool solve_triangular(In in, Types& outs) {
  const TensorType *a = tensor(in, 0), *b = tensor(in, 1);
  if (!a || !b || a->rank() < 2 || b->rank() < 2 || a->dtype != b->dtype || has_zero_size(*a) || has_zero_size(*b))
    return false;
  const size_t m = a->rank(), n = b->rank();
  const Expr rows = b->sizes[n - 2], columns = b->sizes[n - 1];
  if (!eq(a->sizes[m - 2], a->sizes[m - 1]) || !eq(a->sizes[m - 1], flag(arg(in, 3)) ? rows : columns)) return false;
  auto sizes = broadcast({a->sizes.begin(), a->sizes.end() - 2}, {b->sizes.begin(), b->sizes.end() - 2});
  if (!sizes) return false;
  sizes->insert(sizes->end(), {rows, columns});
  TensorType out = fresh(*b, b->dtype, std::move(*sizes));
  out.strides[out.rank() - 2] = 1;
  out.strides[out.rank() - 1] = rows;
  return one(outs, std::move(out));
}

}  // namespace

void add_matmuls(Table& t) {
  const auto kind = OpKind::kExtern;
  t.add("mm.default", kind, mm);
  t.add("bmm.default", kind, bmm);
  add_with_inplace<addmm>(t, "addmm", "default", kind);
  add_with_inplace<baddbmm>(t, "baddbmm", "default", kind);
  add_with_inplace<addbmm>(t, "addbmm", "default", kind);
  add_with_inplace<addmv>(t, "addmv", "default", kind);
  t.add("_addmm_activation.default", kind, addmm);
  t.add("_grouped_mm.default", kind, grouped_mm);
  t.add("mv.default", kind, mv);
  t.add("linalg_solve_triangular.default", OpKind::kExtern, solve_triangular);
  t.add("dot.default", kind, dot);
  t.add("vdot.default", kind, dot);
  add_out<mm, false>(t, "mm", "default", "out", 2, kind);
  add_out<bmm, false>(t, "bmm", "default", "out", 2, kind);
  add_out<addmm, false>(t, "addmm", "default", "out", 5, kind);
  add_out<baddbmm, false>(t, "baddbmm", "default", "out", 5, kind);
}

}  // namespace flashover::ops::aten
