// Tools that infer rules share: argument access, type promotion, broadcasting, memory layouts. Internal to ops/aten.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops/aten/table.h"

namespace flashover::ops::aten {

using In = const InferContext&;
using Types = std::vector<TensorType>;
using sym::Expr;
using Ints = std::vector<int64_t>;

// ---- arguments
const Arg& arg(In in, size_t i);            // None when the call has fewer
const TensorType* tensor(In in, size_t i);  // null for None and scalars
std::optional<int64_t> integer(const Arg& a);
std::optional<Expr> size_expr(const Arg& a);
bool flag(const Arg& a);  // false for None
std::optional<DType> dtype_of(const Arg& a);
std::optional<MemoryFormat> format_of(const Arg& a);
std::optional<double> number(const Arg& a);  // real scalars
bool is_scalar(const Arg& a);
std::optional<DType> scalar_dtype(const Arg& a);
std::optional<Ints> integers(const Arg& a);                              // constant list; {} for None
std::optional<Sizes> size_list(const Arg& a);                            // numbers or sizes
std::optional<std::vector<const TensorType*>> tensors(In in, size_t i);  // entries null for None
// A tensor or a number standing where a tensor is expected; numbers become wrapped 0-d tensors in `scratch`.
const TensorType* operand(In in, size_t i, TensorType& scratch);

// Python-style dim; nullopt when out of range. A 0-d tensor counts as rank 1.
std::optional<size_t> wrap_dim(int64_t dim, size_t rank);
std::optional<std::vector<bool>> dim_mask(const Arg& dims, size_t rank, bool empty_is_all = true);

// ---- dtypes
DType promote(DType a, DType b);  // kUndefined when there is no answer
class Promotion {                 // result_type over tensors and numbers with their categories
 public:
  explicit Promotion(DType default_dtype) : default_(default_dtype) {}
  void add(const TensorType& t);
  void add_number(DType d);
  DType result() const;

 private:
  DType default_, dim_ = DType::kUndefined, zero_ = DType::kUndefined, wrapped_ = DType::kUndefined;
};
bool is_integral_or_bool(DType d);
bool is_complex(DType d);
DType to_real(DType d);     // c64 -> f32
DType to_complex(DType d);  // f32 -> c64
bool can_cast(DType from, DType to);

// ---- layouts
bool contiguous(const TensorType& t);                // as ATen: also true for no elements; false when not provable
bool channels_last_contiguous(const TensorType& t);  // rank 4 or 5; dims of size one may have any stride
bool has_zero_size(const TensorType& t);
// One image of three dimensions, channels last: strides of `sizes` laid out like it; else nothing.
std::optional<Sizes> strides_of_one_image(const TensorType& x, Sizes sizes);
bool has_empty_image(const TensorType& t, size_t n);  // of n dimensions: no size but the batch's may be 0
bool known_sizes(const TensorType& t);                // sizes and strides are numbers
std::optional<Ints> ints(const Sizes& s);
Sizes exprs(const Ints& v);
bool non_overlapping_and_dense(const TensorType& t);
bool repeats(const TensorType& t);  // a dim of stride 0 over more than one place
// Not surely one place in memory for every element; of no elements: undefined.
bool overlaps_itself(const Sizes& sizes, const Sizes& strides);
MemoryFormat suggest_format(const TensorType& t);
// Strides of a fresh tensor in that format; kPreserve is not allowed here. nullopt: rank does not fit the format.
std::optional<Sizes> format_strides(const Sizes& sizes, MemoryFormat f);
// Strides of empty_like(t, preserve): t's own when dense, else the dense ones that keep its order of dims.
std::optional<Sizes> preserved_strides(const TensorType& t);

TensorType fresh(const TensorType& like, DType dtype, Sizes sizes);  // contiguous, on like's device
bool fresh_like(const TensorType& like, DType dtype, std::optional<MemoryFormat> f, TensorType& out);
std::optional<Sizes> broadcast(const Sizes& a, const Sizes& b);
bool fits_classes(const TensorType* weight, Expr classes);  // of a loss; null: there is none
bool is_index(const TensorType& t);                         // of a type that eager takes for one

// What TensorIterator allocates for an undefined output over these operands; fills out.sizes and out.strides.
bool iterate(std::span<const TensorType* const> operands, TensorType& out);
// The same after promotion of the operands to `common` (eager on CPU copies operands of other dtypes first).
bool iterate_promoted(std::span<const TensorType* const> operands, DType common, DType result, Types& outs);

bool one(Types& outs, TensorType t);  // outs = {t}; true

}  // namespace flashover::ops::aten
