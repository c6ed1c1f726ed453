// Reading operator arguments. Each accessor CHECKs the kind, so a rule reads like the schema it implements; the *_or
// forms take None for the default.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"
#include "ops/types.h"

namespace flashover::ops {

inline ValueId as_value(const Arg& a) {
  const Ref* r = std::get_if<Ref>(&a);
  FLASHOVER_CHECK(r && r->id != kNoValue) << "tensor argument expected";
  return r->id;
}
inline std::optional<ValueId> as_optional_value(const Arg& a) {
  if (is_none(a)) return std::nullopt;
  return as_value(a);
}
// A list of tensors; an empty list of any kind counts.
RefList as_values(const Arg& a);
sym::Expr as_expr(const Arg& a);  // int, bool counts as 0 / 1
int64_t as_int(const Arg& a);     // a constant int
Sizes as_sizes(const Arg& a);     // int list; a single int is a list of one
std::vector<int64_t> as_ints(const Arg& a);
bool as_bool(const Arg& a);
double as_double(const Arg& a);  // any real scalar with a constant value
DType as_dtype(const Arg& a);
inline DType as_dtype_or(const Arg& a, DType fallback) { return is_none(a) ? fallback : as_dtype(a); }
Device as_device(const Arg& a);
inline bool is_scalar(const Arg& a) {
  return std::holds_alternative<sym::Expr>(a) || std::holds_alternative<double>(a) || std::holds_alternative<bool>(a) ||
         std::holds_alternative<std::complex<double>>(a);
}
// Exactly zero / one as a number, whatever its kind. -0.0 is not zero.
bool is_number(const Arg& a, double value);

inline int64_t wrap_dim(int64_t dim, size_t rank) {
  const auto n = static_cast<int64_t>(rank == 0 ? 1 : rank);
  FLASHOVER_CHECK(dim >= -n && dim < n) << "dim " << dim << " out of range for rank " << rank;
  return dim < 0 ? dim + n : dim;
}

// Dense strides for `sizes` whose dims are ordered as `strides` orders them (ties and unknown: row major).
Sizes dense_like(const Sizes& sizes, const Sizes& strides);
// Strides with which a tensor of type t can be seen as `sizes` without moving data; nullopt if it cannot (or not
// provably).
std::optional<Sizes> view_strides(const TensorType& t, const Sizes& sizes);
// The common sizes of two operands, broadcast from the right. CHECKs that they fit (provably).
Sizes broadcast_sizes(const Sizes& a, const Sizes& b);
// An order of strides: where it cannot be told for all sizes, some order.
bool is_smaller_stride(sym::Expr a, sym::Expr b);
// Every element has its own place and there are no gaps (provably).
bool is_dense(const Sizes& sizes, const Sizes& strides);

}  // namespace flashover::ops
