// Sorts dimensions, and adds up what they span.
#include "ops/geometry.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace flashover {

std::string part_in_words(const std::string& tensor, size_t part) {
  const std::string dim = std::to_string(dimension_of_part(part));
  return is_stride_part(part) ? tensor + ".stride(" + dim + ")" : tensor + ".shape[" + dim + "]";
}

std::vector<size_t> inner_first(std::span<const int64_t> strides) {
  std::vector<size_t> order(strides.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t d) { return std::pair(strides[d], -static_cast<int64_t>(d)); });
  return order;
}

std::vector<bool> spanned_strides(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  std::vector<bool> out(sizes.size());
  int64_t span = 1;
  for (size_t d : inner_first(strides)) {
    out[d] = strides[d] == span;
    span = strides[d] * std::max<int64_t>(sizes[d], 1);
  }
  return out;
}

}  // namespace flashover
