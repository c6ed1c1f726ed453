// Convolutions of f32 images that lie channels last, as products by panels (panels.h), for any kernel and groups: the
// runtime without torch computes with it what oneDNN does elsewhere.
//
// A row of the product is what one point of the result reads: its taps one behind the other, the channels of each side
// by side. Rows are gathered for one chunk at a time, in memory of the thread that stays in L2; where a row is a point
// of the image itself none is.
//
// Packed: group by group, the weight as a matrix [out channels, (tap, channel)] in panels.
#pragma once
#include <array>
#include <cstdint>

#include "cpu_kernels/linear.h"

namespace flashover::cpu {

// Spatial dims, the last one innermost; those that an image lacks come first, and have one point.
constexpr size_t kSpatial = 3;
using Spatial = std::array<int64_t, kSpatial>;

struct ConvolutionShape {
  int64_t in = 0, out = 0, groups = 1;  // channels of all groups
  Spatial kernel{}, stride{}, padding{}, dilation{};

  int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  int64_t inner() const { return in / groups * taps(); }
};
int64_t packed_elements(const ConvolutionShape& s);
// weight: its first element; element strides of [out, in of a group, kernel...].
void pack_convolution(const ConvolutionShape& s, const float* weight, int64_t out_stride, int64_t in_stride,
                      const Spatial& kernel_stride, float* packed);

struct PanelConvolution {
  ConvolutionShape shape;
  const float* x;  // [batch, ..., in], channels dense
  int64_t image;   // elements from one image to the next
  Spatial step;    // ... from point to point
  const float* packed;
  const float* bias;  // [out], or null
  float* out;         // [batch, ..., out], dense
  int64_t batch;
  Spatial size, out_size;
  Activation activation = Activation::kNone;
};
void convolution(const PanelConvolution& c);  // vector_kernels() must be there

}  // namespace flashover::cpu
