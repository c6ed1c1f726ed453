// Images (channels last) as rows of what each result of a convolution reads, and back: for convolutions of few points,
// whose weights are most of what there is to read.
#pragma once
#include <array>
#include <cstdint>

namespace flashover::cpu {

struct Unfold {
  int64_t batch = 0, channels = 0;
  std::array<int64_t, 2> size{}, out_size{}, kernel{}, stride{}, padding{}, dilation{};
  int64_t taps() const { return kernel[0] * kernel[1]; }
  int64_t rows() const { return batch * out_size[0] * out_size[1]; }
  int64_t width() const { return channels * taps(); }  // of a row: the taps of each channel, as in a weight
};
constexpr int64_t kMostTaps = 64;
// Where each tap of a result lies in its image, in points; -1 outside.
void find_taps(const Unfold& u, int64_t y, int64_t x, int64_t* at);
void unfold(const Unfold& u, const float* image, float* rows);
// bf16. Both need AVX512.
void unfold(const Unfold& u, const uint16_t* image, uint16_t* rows);
void fold(const Unfold& u, const uint16_t* rows, uint16_t* image);  // the sum of all that came from a point, in f32

}  // namespace flashover::cpu
