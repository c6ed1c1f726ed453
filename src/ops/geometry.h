// The numbers of a tensor's geometry, counted on from one another: part d is the size of dimension d, and
// kMaxSymbolicRank + d its stride. By these the stages name what is a symbol, or may become one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace flashover {

constexpr size_t kMaxSymbolicRank = 16;  // dimensions behind it have numbers

constexpr bool is_stride_part(size_t part) { return part >= kMaxSymbolicRank; }
constexpr size_t dimension_of_part(size_t part) { return part % kMaxSymbolicRank; }
// "x.shape[0]", "x.stride(0)" of the tensor "x".
std::string part_in_words(const std::string& tensor, size_t part);

// The dimensions by their strides, the smallest first; of equal ones the last dimension.
std::vector<size_t> inner_first(std::span<const int64_t> strides);
// By dimension: whether its stride is what the dimensions within it span. (As ATen: empty ones count as one element.)
std::vector<bool> spanned_strides(std::span<const int64_t> sizes, std::span<const int64_t> strides);

}  // namespace flashover
