// The hand-written operators over plain memory: what torch's dispatcher hands them (operators.cpp) and what the runtime
// without torch does (bare/), checked and computed in one place.
//
//   In        tensors as addresses with sizes and strides
//   Out       results written, in memory that the caller has
//   Promises  no torch; nothing is read or written outside of the tensors
//   Declines  arguments that do not fit each other, or this machine: what is wrong, in words; nothing was written then
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "ops/types.h"

namespace flashover::cpu {

struct Plain {
  void* data = nullptr;  // the first element
  DType dtype = DType::kUndefined;
  std::span<const int64_t> sizes, strides;
  int64_t rank() const { return static_cast<int64_t>(sizes.size()); }
  int64_t size(int64_t dim) const { return sizes[static_cast<size_t>(dim < 0 ? dim + rank() : dim)]; }
  int64_t stride(int64_t dim) const { return strides[static_cast<size_t>(dim < 0 ? dim + rank() : dim)]; }
  int64_t numel() const;
  bool is_dense() const;  // row by row
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};
bool is_f32(const Plain& t);
bool is_vector(const Plain* t, int64_t size);  // of so many f32 numbers side by side, or null

// What is wrong; empty: it is done. Tensors that are pointers may be null.
using Wrong = std::string_view;

// Elements of what pack_linear makes of a columns x inner weight, of the weight's dtype (three bf16 of each f32 number
// are two to a float).
int64_t packed_linear_elements(DType dtype, int64_t columns, int64_t inner);
Wrong pack_linear(const Plain& weight, const Plain& packed);
Wrong packed_linear(const Plain& x, const Plain& packed, const Plain* bias, int64_t columns,
                    std::string_view activation, const Plain& out);

Wrong pack_panels(const Plain& weight, const Plain& packed);
Wrong panel_linear(const Plain& x, const Plain& packed, const Plain* bias, const Plain* added, int64_t columns,
                   std::string_view activation, const Plain& out);

// [batch,] rows x inner times [batch,] inner x columns (product.h). added: of any sizes that spread to the result's. wide:
// of bf16 matrices the result, and what is added, are f32. vectors: f32 matrices not on the AMX unit, if there is one.
Wrong product(const Plain& a, const Plain& b, const Plain* added, std::string_view activation, bool wide, bool vectors,
              const Plain& out);

Wrong pack_depthwise(const Plain& weight, const Plain& packed);
struct DepthwiseGeometry {
  std::span<const int64_t> kernel, stride, padding, dilation;  // rows, columns
};
Wrong depthwise_last(const Plain& x, const Plain& packed, const Plain* bias, const DepthwiseGeometry& geometry,
                     std::string_view activation, const Plain& out);

struct AttentionOptions {
  double scale = 1;
  bool causal = false, zero_if_none = false;
};
// logsumexp: [..., queries], what a backward needs, or null.
Wrong attention(const Plain& q, const Plain& k, const Plain& v, std::span<const Plain> biases,
                const AttentionOptions& options, const Plain& out, const Plain* logsumexp);

// What the operator of that name needs of the processor whatever its arguments, and this one lacks; empty: nothing.
std::string_view missing_for(std::string_view op);

// ---- calls by name, as plans have them
using PlainArgument = std::variant<std::monostate, Plain, std::vector<Plain>, int64_t, std::vector<int64_t>, double,
                                   bool, std::string_view>;
struct PlainOperator {
  std::string_view name;  // without the overload
  // For arguments of other kinds than the operator's: wrong, too.
  Wrong (*call)(std::span<const PlainArgument> arguments, std::span<const Plain> results);
  // Elements of a result that is in the operator's own order, of arguments without data, -1 where they do not fit; null:
  // results are tensors like others.
  int64_t (*packed_elements)(std::span<const PlainArgument> arguments);
  // One of torch's libraries, which own kernels compute where that is not there (library_operators.h): in f32 alone. A
  // second result may be left out.
  bool of_library = false;
};
const PlainOperator* find_plain(std::string_view op);  // null: none of these

}  // namespace flashover::cpu
