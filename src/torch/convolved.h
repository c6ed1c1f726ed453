// Sizes of aten.convolution's result.
#pragma once
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

namespace flashover::aten {

// input [batch, channels, ...], weight [out channels, ..., ...]; stride, padding, dilation: one a spatial dimension.
inline std::vector<int64_t> convolved_sizes(c10::IntArrayRef input, c10::IntArrayRef weight, c10::IntArrayRef stride,
                                            c10::IntArrayRef padding, c10::IntArrayRef dilation) {
  std::vector<int64_t> sizes{input[0], weight[0]};
  for (size_t d = 0; d < stride.size(); ++d)
    sizes.push_back((input[d + 2] + 2 * padding[d] - dilation[d] * (weight[d + 2] - 1) - 1) / stride[d] + 1);
  return sizes;
}

}  // namespace flashover::aten
