// Convolutions on the AMX unit, for images as they lie in memory (batch, channels, rows, columns): bf16, and f32 in
// the bf16x3 split (linear.h).
//
// An image is laid out as a line of points, rows one behind the other with the zeros of the padding between them, so
// that what a point of the kernel (a tap) reads is the line shifted by a constant. A convolution is then a sum of
// products, one for each tap: weights [out, in] times points [in, a segment of the line + shift]; channels are the
// inner dim, two of them side by side in 32 bits, as the unit wants its right operand. Strides become several lines
// (phases), each of every second row and column; the gradient of the input several results, each of every second point.
// The gradient of the weight is the product of the same lines with points as the inner dim.
//
// Lines are made segment by segment, split, in memory of the thread, and serve all taps and all output channels.
#pragma once
#include <cstdint>

namespace flashover::cpu {

// One group. T: float, or uint16_t for bf16.
struct ConvolutionSizes {
  int64_t batch, in, out;                   // channels
  int64_t size[2], out_size[2], kernel[2];  // rows, columns
  int64_t stride[2], padding[2], dilation[2];
  int64_t threads;              // that share the work
  int64_t in_image, out_image;  // elements from image to image
};

// False: numbers are out of range (infinities, NaN, f32 that the split cannot represent), and what was written is not a result.
// workspace: so many bytes, aligned to 64.
int64_t convolution_workspace(const ConvolutionSizes& s, bool f32);
template <typename T>
bool convolution(const ConvolutionSizes& s, const T* x, const T* weight, const T* bias, T* out, void* workspace);
template <typename T>
bool convolution_input_gradient(const ConvolutionSizes& s, const T* grad, const T* weight, T* out, void* workspace);

int64_t weight_gradient_workspace(const ConvolutionSizes& s, bool f32);
template <typename T>
bool convolution_weight_gradient(const ConvolutionSizes& s, const T* grad, const T* x, T* out, void* workspace);

// Each channel by itself (as many groups as channels in and out; `in` and `out` say how many): the same lines, in f32
// arithmetic. For AVX512, any numbers.
template <typename T>
void depthwise(const ConvolutionSizes& s, const T* x, const T* weight, const T* bias, T* out);
template <typename T>
void depthwise_input_gradient(const ConvolutionSizes& s, const T* grad, const T* weight, T* out);
template <typename T>
void depthwise_weight_gradient(const ConvolutionSizes& s, const T* grad, const T* x, T* out);

}  // namespace flashover::cpu
