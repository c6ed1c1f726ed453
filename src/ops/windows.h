// Windows of pooling operators.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace flashover::ops {

// Side by side, from the first element on: none overlaps another, and none reaches into padding.
inline bool windows_tile(const std::vector<int64_t>& kernel, const std::vector<int64_t>& stride,
                         const std::vector<int64_t>& padding, const std::vector<int64_t>& dilation) {
  return kernel == stride && std::ranges::all_of(padding, [](int64_t p) { return p == 0; }) &&
         std::ranges::all_of(dilation, [](int64_t d) { return d == 1; });
}

}  // namespace flashover::ops
