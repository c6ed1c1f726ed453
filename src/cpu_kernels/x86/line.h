// How numbers of either type become operands of the AMX unit, from lines of points (convolution_plan.h). Include last,
// as lanes.h.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "cpu_kernels/convolution_plan.h"
#include "cpu_kernels/x86/bf16x3.h"

namespace flashover::cpu {

FLASHOVER_AVX512_BEGIN

static inline __m512i lane_indices() { return _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0); }

// Vectors of 16 numbers in 32 bits each, and pairs of them as the unit takes them: a below, b above.
template <typename T>
struct Pack;

template <>
struct Pack<float> {
  static constexpr int kTerms = 3;
  static __m512i load(const float* p, int64_t step, __m512i index, __mmask16 mask) {
    return step == 1 ? _mm512_maskz_loadu_epi32(mask, p)
                     : _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), mask, index, p, 4);
  }
  static __m512i size(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi32(kNotSign)); }
  static void store(__m512i a, __m512i b, uint16_t* out, int64_t term) { store_bf16x3(a, b, out, term); }
  static float number(float x) { return x; }
  static void write(float* p, int64_t step, __m512i index, __mmask16 mask, __m512 x) {
    if (step == 1)
      _mm512_mask_storeu_ps(p, mask, x);
    else
      _mm512_mask_i32scatter_ps(p, mask, index, x, 4);
  }
  // Three terms hold numbers below 2^63; products of the smallest terms are lost below 2^-126, so the largest product
  // must be far above.
  static bool fits(uint32_t a, uint32_t b) {
    if (a == 0 || b == 0) return std::max(a, b) < kMost;
    return a < kMost && b < kMost && (a >> 23) + (b >> 23) >= 254u - 60;
  }
};

template <>
struct Pack<uint16_t> {
  static constexpr int kTerms = 1;
  static __m512i load(const uint16_t* p, int64_t step, __m512i, __mmask16 mask) {
    if (step == 1) return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p));
    alignas(64) uint32_t x[16] = {};
    for (int i = 0; i < 16; ++i)
      if (mask >> i & 1) x[i] = p[i * step];
    return _mm512_load_si512(x);
  }
  static __m512i size(__m512i x) { return _mm512_slli_epi32(_mm512_and_si512(x, _mm512_set1_epi32(0x7fff)), 16); }
  static void store(__m512i a, __m512i b, uint16_t* out, int64_t) {
    _mm512_store_si512(out, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
  }
  static float number(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }
  static void write(uint16_t* p, int64_t step, __m512i, __mmask16 mask, __m512 x) {
    if (step == 1) return store_bf16(p, mask, x);
    alignas(32) uint16_t rounded[16];
    store_bf16(rounded, 0xffff, x);
    for (int i = 0; i < 16; ++i)
      if (mask >> i & 1) p[i * step] = rounded[i];
  }
  static bool fits(uint32_t a, uint32_t b) { return std::max(a, b) < 0x7f800000; }
};

template <typename T>
static inline __m512i load_points(const T* x, const Line& l, const PointRuns& runs, int64_t group, __m512i index) {
  const PointRuns::Group& g = runs.groups[static_cast<size_t>(group)];
  __m512i v = Pack<T>::load(x + g.first.offset, l.step[1], index, g.first.mask);
  for (int32_t i = g.more; i < g.end; ++i) {
    const PointRun& r = runs.more[static_cast<size_t>(i)];
    v = _mm512_or_si512(v, Pack<T>::load(x + r.offset, l.step[1], index, r.mask));
  }
  return v;
}
static inline __m512i steps_of(const Line& l) {
  return _mm512_mullo_epi32(lane_indices(), _mm512_set1_epi32(static_cast<int>(l.step[1])));
}

// Channels in pairs (c, c + 16) as right operands: for each block of 32 channels, each phase, each term, 16 pairs, the
// points. What is returned is the largest number, as bits.
template <typename T>
static inline uint32_t pack_points(const Line& l, const T* x, int64_t channels, int64_t block, int64_t blocks,
                                   int64_t first, int64_t length, char* out) {
  constexpr int64_t terms = Pack<T>::kTerms;
  const int64_t term = kTile * length * 2;  // elements
  __m512i largest = _mm512_setzero_si512();
  const __m512i index = steps_of(l);
  auto* to = reinterpret_cast<uint16_t*>(out);
  for (size_t phase = 0; phase < l.used.size(); ++phase) {
    const PointRuns runs = find_runs(l, l.used[phase], first, length);
    for (int64_t k = 0; k < blocks; ++k)
      for (int64_t pair = 0; pair < kTile; ++pair) {
        const int64_t c = (block + k) * kBlock + pair;
        const T *low = x + c * l.channel, *high = low + kTile * l.channel;
        uint16_t* row = to + (k * static_cast<int64_t>(l.used.size()) + static_cast<int64_t>(phase)) * terms * term +
                        pair * length * 2;
        for (int64_t group = 0; group < length / 16; ++group) {
          const __m512i zero = _mm512_setzero_si512();
          const __m512i a = c < channels ? load_points(low, l, runs, group, index) : zero;
          const __m512i b = c + kTile < channels ? load_points(high, l, runs, group, index) : zero;
          largest = _mm512_max_epu32(largest, _mm512_max_epu32(Pack<T>::size(a), Pack<T>::size(b)));
          // (The next channel is far away.)
          const T* next = low + runs.groups[static_cast<size_t>(group)].first.offset + l.channel;
          _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
          _mm_prefetch(reinterpret_cast<const char*>(next + kTile * l.channel), _MM_HINT_T0);
          Pack<T>::store(a, b, row + group * 32, term);
        }
      }
  }
  return _mm512_reduce_max_epu32(largest);
}

// Where the operands of a product of tiles lie, in bytes.
struct TileOperand {
  const char* at;
  const int64_t* offsets;  // of each step; null: `step` apart
  int64_t step, stride, term, second;
  const char* of(int64_t k) const { return at + (offsets ? offsets[k] : k * step); }
};

// c (tiles of 16 x 16, two by two) = a b, summed over steps; small products first (bf16x3.h).
template <int terms, bool two>
static inline void multiply(const TileOperand& a, const TileOperand& b, int64_t steps, float* c) {
  __asm__ volatile("" ::: "memory");  // the tile loads do not say that they read memory
  zero_sums<two>();
  for (int64_t k = 0; k < steps; ++k) {
    const char *left = a.of(k), *right = b.of(k);
    const auto times = [&](int64_t term_a, int64_t term_b, bool load_a, bool load_b) __attribute__((always_inline)) {
      const char *x = left + term_a * a.term, *y = right + term_b * b.term;
      if (load_a) _tile_loadd(4, x, a.stride);
      if (load_b) _tile_loadd(6, y, b.stride);
      _tile_dpbf16ps(0, 4, 6);
      if (load_b) _tile_loadd(7, y + b.second, b.stride);
      _tile_dpbf16ps(1, 4, 7);
      if (two) {
        if (load_a) _tile_loadd(5, x + a.second, a.stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    };
    if (terms == 1) {
      times(0, 0, true, true);
    } else {
      times(0, 2, true, true);
      times(0, 1, false, true);
      times(1, 1, true, false);
      times(1, 0, false, true);
      times(2, 0, true, false);
      times(0, 0, true, false);
    }
  }
  store_sums<two>(c);
  __asm__ volatile("" ::: "memory");
}

FLASHOVER_AVX512_END

}  // namespace flashover::cpu
