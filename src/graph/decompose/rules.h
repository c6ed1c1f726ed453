// Helpers that decompositions share. Internal to graph/decompose.
//
// A decomposition sees a functional node and appends prims; it returns false, with nothing appended, to keep the node
// extern. Reduced floats compute in f32 and round once per aten operator, as eager's kernels do.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "graph/decompose/decompose.h"

namespace flashover::graph::rules {

using Outs = std::vector<ValueId>;
using Ints = std::vector<int64_t>;
constexpr double kInf = std::numeric_limits<double>::infinity();

const Arg& arg(const Node& n, size_t i);
bool has(const Node& n, size_t i);  // a tensor stands there
ValueId in(const Node& n, size_t i);
const TensorType& type(Builder& b, const Node& n, size_t i);
TensorType result(Builder& b, const Node& n, size_t i = 0);  // of that result; of any live one when it is dead
bool dead(const Node& n, size_t i);

std::optional<int64_t> integer(const Arg& a);
std::optional<double> number(const Arg& a);
bool flag(const Arg& a);
std::optional<Ints> integers(const Arg& a);              // {} for None
std::optional<Ints> spread(const Arg& a, size_t count);  // one entry stands for all
std::optional<Ints> dims(Builder& b, const Arg& a, ValueId x, bool empty_is_all = true);

bool plain(DType d);                                         // a dtype that prims compute in
DType math(DType d);                                         // f16, bf16 -> f32
bool is_int(DType d);                                        // integers, not bool
bool may_be_empty(Builder& b, ValueId x, const Ints& dims);  // one of the dims may have no element

// A number in a dtype; nullopt when eager would call it an overflow.
std::optional<Arg> scalar_in(const Arg& a, DType d);
bool scalar_fits(const Arg& a, DType d);               // also true for what is not a scalar
ValueId constant(Builder& b, ValueId like, double v);  // 0-d, dtype of `like`
ValueId number_of(Builder& b, ValueId like, sym::Expr count);
ValueId ratio(Builder& b, ValueId like, sym::Expr over, sym::Expr under);
std::optional<sym::Expr> size_at(Builder& b, const Node& n, size_t i);  // the size that is the number i
// Argument i in dtype d: a tensor converted, a number (which must fit) as a 0-d constant.
ValueId operand(Builder& b, const Node& n, size_t i, DType d);
// The same by way of `common`: eager rounds to the common dtype before the kernel reads it.
ValueId operand_via(Builder& b, const Node& n, size_t i, DType common, DType d);
// The common dtype of arguments i and j by promotion; kUndefined when unknown.
DType common_dtype(Builder& b, const Node& n, std::initializer_list<size_t> at);

bool done(Builder& b, ValueId v, DType d, Outs& outs);  // outs = {v converted}; true

// Mean and squares in two passes; reduced dims kept. The rounding of the first mean shows in the sum of what is
// centred, and is taken out again: the mean may be far larger than the spread. Centred x: off - shift.
struct Moments {
  ValueId mean, off, shift;
  ValueId squares;  // sum of squares about the mean
};
Moments moments(Builder& b, ValueId x, const Ints& over);

// The dtypes of the first tensor that eager has a kernel for. For the others the node stays extern, and eager raises.
enum class Takes { kPlain, kNumbers, kFloats, kWhole };  // all; all but bool; floats; integers and bool
bool taken(DType d, Takes takes);

// True when the node's tensors are all of plain dtypes; every row checks this first.
bool plain_node(Builder& b, const Node& n);
template <Decomposition F, Takes takes>
bool guarded(Builder& b, const Node& n, Outs& outs) {
  if (!plain_node(b, n)) return false;
  if constexpr (takes != Takes::kPlain)
    if (!taken(b.dtype(in(n, 0)), takes)) return false;
  return F(b, n, outs);
}
template <Decomposition F, Takes takes = Takes::kPlain>
void add(DecompositionRows& rows, std::initializer_list<const char*> names) {
  for (const char* name : names) rows.push_back({name, guarded<F, takes>});
}

void add_pointwise(DecompositionRows& rows);
void add_copies(DecompositionRows& rows);
void add_views(DecompositionRows& rows);
void add_reductions(DecompositionRows& rows);
void add_norms(DecompositionRows& rows);
void add_indexing(DecompositionRows& rows);
void add_windows(DecompositionRows& rows);
void add_losses(DecompositionRows& rows);
void add_class_losses(DecompositionRows& rows);
void add_backward(DecompositionRows& rows);

}  // namespace flashover::graph::rules
