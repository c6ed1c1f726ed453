// f32: copies the taps of each point into its row.
#include "cpu_kernels/unfold.h"

#include <algorithm>

#include "cpu_kernels/team.h"

namespace flashover::cpu {

void find_taps(const Unfold& u, int64_t y, int64_t x, int64_t* at) {
  for (int64_t i = 0; i < u.kernel[0]; ++i)
    for (int64_t j = 0; j < u.kernel[1]; ++j) {
      const int64_t row = y * u.stride[0] - u.padding[0] + i * u.dilation[0];
      const int64_t column = x * u.stride[1] - u.padding[1] + j * u.dilation[1];
      const bool inside = row >= 0 && row < u.size[0] && column >= 0 && column < u.size[1];
      *at++ = inside ? row * u.size[1] + column : -1;
    }
}

void unfold(const Unfold& u, const float* image, float* rows) {
  constexpr int64_t kPicoseconds = 500;  // an element
  const int64_t taps = u.taps(), points = u.size[0] * u.size[1], results = u.out_size[0] * u.out_size[1];
  share_parts(u.rows(), u.rows() * u.width() * kPicoseconds, [&](int64_t begin, int64_t end) {
    int64_t at[kMostTaps];
    for (int64_t row = begin; row < end; ++row) {
      const int64_t r = row % results;
      find_taps(u, r / u.out_size[1], r % u.out_size[1], at);
      float* const to = rows + row * u.width();
      for (int64_t t = 0; t < taps; ++t) {
        if (at[t] < 0) {
          for (int64_t c = 0; c < u.channels; ++c) to[c * taps + t] = 0;
          continue;
        }
        const float* const from = image + (row / results * points + at[t]) * u.channels;
        for (int64_t c = 0; c < u.channels; ++c) to[c * taps + t] = from[c];
      }
    }
  });
}

}  // namespace flashover::cpu
