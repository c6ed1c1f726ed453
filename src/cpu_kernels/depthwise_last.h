// Depthwise convolutions of f32 images that lie channels last, the weight packed beforehand: 16 to 64 channels of up to
// four points of a row at a time.
//
// Packed: for each 16 channels, the 16 numbers of each tap, zeros behind the last channel.
#pragma once
#include <cstdint>

#include "cpu_kernels/linear.h"
#include "cpu_kernels/vectors.h"

namespace flashover::cpu {

inline int64_t depthwise_elements(int64_t channels, int64_t taps) { return ceil_div(channels, kPanel) * kPanel * taps; }
// weight: [channels, taps], dense.
void pack_depthwise(const float* weight, int64_t channels, int64_t taps, float* packed);

struct DepthwiseLast {
  const float* x;              // [batch, rows, columns, channels], channels dense
  int64_t image, row, column;  // elements from one to the next
  const float* packed;
  const float* bias;  // [channels], or null
  float* out;         // [batch, out rows, out columns, channels], dense
  int64_t batch, channels;
  int64_t size[2], out_size[2], kernel[2];  // rows, columns
  int64_t stride[2], padding[2], dilation[2];
  Activation activation = Activation::kNone;
};
void depthwise(const DepthwiseLast& d);

}  // namespace flashover::cpu
