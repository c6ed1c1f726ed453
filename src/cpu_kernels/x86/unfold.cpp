// bf16: copies the taps of each point into its row, and adds rows back into an image.
#include "cpu_kernels/unfold.h"

#include <algorithm>
#include <cstring>

#include "cpu_kernels/team.h"
// Last: the rest of the file is for AVX512.
#include "cpu_kernels/x86/lanes.h"

namespace flashover::cpu {

FLASHOVER_AVX512_BEGIN
namespace {

constexpr int64_t kChannels = 32;  // at a time

// f(image number, first channel, number of channels) for blocks of channels of all images.
template <typename F>
void for_channel_blocks(const Unfold& u, const F& f) {
  constexpr int64_t kBlock = 4 * kChannels;
  const int64_t blocks = (u.channels + kBlock - 1) / kBlock;
  in_parallel(u.batch * blocks, [&](int64_t n) {
    const int64_t first = n % blocks * kBlock;
    f(n / blocks, first, std::min(kBlock, u.channels - first));
  });
}

}  // namespace

void unfold(const Unfold& u, const uint16_t* image, uint16_t* rows) {
  const int64_t taps = u.taps(), points = u.size[0] * u.size[1], results = u.out_size[0] * u.out_size[1];
  for_channel_blocks(u, [&](int64_t n, int64_t first, int64_t channels) {
    int64_t at[kMostTaps];
    alignas(64) uint16_t block[kMostTaps * kChannels];
    for (int64_t r = 0; r < results; ++r) {
      find_taps(u, r / u.out_size[1], r % u.out_size[1], at);
      for (int64_t c = first; c < first + channels; c += kChannels) {
        const int64_t here = std::min(kChannels, first + channels - c);
        const __mmask32 mask = here == kChannels ? ~__mmask32{0} : (__mmask32{1} << here) - 1;
        for (int64_t t = 0; t < taps; ++t)
          _mm512_store_si512(block + t * kChannels,
                             at[t] < 0 ? _mm512_setzero_si512()
                                       : _mm512_maskz_loadu_epi16(mask, image + (n * points + at[t]) * u.channels + c));
        uint16_t* to = rows + (n * results + r) * u.width() + c * taps;
        for (int64_t i = 0; i < here; ++i)
          for (int64_t t = 0; t < taps; ++t) *to++ = block[t * kChannels + i];
      }
    }
  });
}

void fold(const Unfold& u, const uint16_t* rows, uint16_t* image) {
  const int64_t taps = u.taps(), points = u.size[0] * u.size[1], results = u.out_size[0] * u.out_size[1];
  for_channel_blocks(u, [&](int64_t n, int64_t first, int64_t channels) {
    int64_t at[kMostTaps];
    alignas(64) uint16_t block[kMostTaps * kChannels];
    for (int64_t c = first; c < first + channels; c += kChannels) {
      const int64_t here = std::min(kChannels, first + channels - c);
      auto* sums = static_cast<float*>(scratch(static_cast<size_t>(points * kChannels) * 4));
      std::memset(sums, 0, static_cast<size_t>(points * kChannels) * 4);
      for (int64_t r = 0; r < results; ++r) {
        find_taps(u, r / u.out_size[1], r % u.out_size[1], at);
        const uint16_t* from = rows + (n * results + r) * u.width() + c * taps;
        for (int64_t i = 0; i < here; ++i)
          for (int64_t t = 0; t < taps; ++t) block[t * kChannels + i] = *from++;
        for (int64_t t = 0; t < taps; ++t) {
          if (at[t] < 0) continue;
          float* sum = sums + at[t] * kChannels;
          for (int64_t i = 0; i < kChannels; i += 16)
            _mm512_store_ps(sum + i, _mm512_add_ps(_mm512_load_ps(sum + i),
                                                   load_bf16(block + t * kChannels + i, first_lanes(here - i))));
        }
      }
      for (int64_t p = 0; p < points; ++p)
        for (int64_t i = 0; i < here; i += 16)
          store_bf16(image + (n * points + p) * u.channels + c + i, first_lanes(here - i),
                     _mm512_load_ps(sums + p * kChannels + i));
    }
  });
}

FLASHOVER_AVX512_END

}  // namespace flashover::cpu
