// The bf16x3 split: an f32 number as the sum of three bf16 terms (linear.h). Splitting, ranges, rows as tiles, the
// product of tiles. Include last, as lanes.h; for AMX.
#pragma once
#include <cstdint>

#include "cpu_kernels/float_state.h"
#include "cpu_kernels/linear.h"
#include "cpu_kernels/x86/lanes.h"

namespace flashover::cpu {

constexpr int64_t kBlockElements = kBlock * kBlock;  // of one term of a block
constexpr int64_t kStep = 3 * kBlockElements;        // ... of the three

// The range of a row's largest number, as bits.
constexpr uint32_t kLeast = (127u - 40) << 23, kMost = (127u + 63) << 23;

inline bool in_range(uint32_t largest) { return largest == 0 || (largest >= kLeast && largest < kMost); }

FLASHOVER_AVX512_BEGIN

constexpr int kNotSign = 0x7fffffff;

// While it lives this thread counts numbers below 2^-126 as 0 (FlushedTeam: all threads). They cost a hundred times a
// normal one, and the unit takes them as zeros anyway.
class FlushDenormals {
 public:
  FlushDenormals() : before_(float_state()) { set_float_state(before_ | kFlush); }
  ~FlushDenormals() { set_float_state(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned before_;
};

struct Bf16x3 {
  __m512i term[3];
};
static inline Bf16x3 split_bf16x3(__m512 a, __m512 b) {
  Bf16x3 p;
  for (int i = 0; i < 3; ++i) {
    const auto h = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    p.term[i] = h;
    if (i == 2) break;
    const __m512i low = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(h)), 16);
    const __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(h, 1)), 16);
    a = _mm512_sub_ps(a, _mm512_castsi512_ps(low));
    b = _mm512_sub_ps(b, _mm512_castsi512_ps(high));
  }
  return p;
}

// The terms of two vectors side by side in each lane (x below), `term` elements apart: rounded to eight bits twice
// by integer arithmetic, which has no shuffles; what is left then has eight.
static inline void store_bf16x3(__m512i x, __m512i y, uint16_t* out, int64_t term) {
  const __m512i half = _mm512_set1_epi32(0x8000), high = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  for (int i = 0; i < 3; ++i, out += term) {
    const __m512i a = i == 2 ? x : _mm512_and_si512(_mm512_add_epi32(x, half), high);
    const __m512i b = i == 2 ? y : _mm512_and_si512(_mm512_add_epi32(y, half), high);
    _mm512_store_si512(out, _mm512_ternarylogic_epi32(_mm512_srli_epi32(a, 16), b, high, 0xf8));  // a | (b & high)
    if (i == 2) break;
    x = _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(a)));
    y = _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(y), _mm512_castsi512_ps(b)));
  }
}

// Packs up to 32 rows of `inner` numbers as `blocks` blocks of tiles: block by block, term by term, zeros behind the
// ends. Returns a bit for each row with a number out of range.
static inline uint32_t pack_rows(const float* x, int64_t row_stride, int64_t rows, int64_t inner, int64_t blocks,
                                 uint16_t* out) {
  uint32_t bad = 0;
  for (int64_t r = 0; r < (rows > kTile ? kBlock : kTile); ++r) {
    uint16_t* to = out + r * kBlock;
    const float* from = x + r * row_stride;
    const int64_t left = r < rows ? inner : 0;
    __m512i largest = _mm512_setzero_si512();
    for (int64_t k = 0; k < blocks; ++k, to += kStep) {
      const __mmask16 low = first_lanes(left - k * kBlock), high = first_lanes(left - k * kBlock - 16);
      const __m512 a = _mm512_maskz_loadu_ps(low, from + (low ? k * kBlock : 0));
      const __m512 b = _mm512_maskz_loadu_ps(high, from + (high ? k * kBlock + 16 : 0));
      const __m512i size = _mm512_set1_epi32(kNotSign);
      largest = _mm512_max_epu32(largest, _mm512_max_epu32(_mm512_and_si512(size, _mm512_castps_si512(a)),
                                                           _mm512_and_si512(size, _mm512_castps_si512(b))));
      const Bf16x3 p = split_bf16x3(a, b);
      for (int i = 0; i < 3; ++i) _mm512_store_si512(to + i * kBlockElements, p.term[i]);
    }
    if (!in_range(_mm512_reduce_max_epu32(largest))) bad |= 1u << r;
  }
  return bad;
}

// c (tiles of 16 x 16, two by two) = rows x panel, small products first, since what is added to small sums is rounded
// less. fetch() is called six times a block: it asks for lines of what comes next from far away.
template <bool two, typename Fetch>
static inline void multiply(const uint16_t* a, int64_t blocks, const uint16_t* b, float* c, Fetch& fetch) {
  __asm__ volatile("" ::: "memory");  // the tile loads do not say that they read memory
  constexpr int64_t kMiddle = kBlockElements, kLow = 2 * kBlockElements, kSecond = kBlockElements / 2;
  zero_sums<two>();
  for (int64_t k = 0; k < blocks; ++k, a += kStep, b += kStep) {
    const auto times = [&](int64_t term_a, int64_t term_b, bool load_a, bool load_b) __attribute__((always_inline)) {
      if (load_a) _tile_loadd(4, a + term_a, 64);
      if (load_b) _tile_loadd(6, b + term_b, 64);
      _tile_dpbf16ps(0, 4, 6);
      if (load_b) _tile_loadd(7, b + term_b + kSecond, 64);
      _tile_dpbf16ps(1, 4, 7);
      if (two) {
        if (load_a) _tile_loadd(5, a + term_a + kSecond, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      fetch();
    };
    times(0, kLow, true, true);
    times(0, kMiddle, false, true);
    times(kMiddle, kMiddle, true, false);
    times(kMiddle, 0, false, true);
    times(kLow, 0, true, false);
    times(0, 0, true, false);
  }
  store_sums<two>(c);
  __asm__ volatile("" ::: "memory");
}

// ... `lines` lines at a time from `next` on.
template <bool two>
static inline void multiply(const uint16_t* a, int64_t blocks, const uint16_t* b, float* c, const uint16_t* next,
                            int64_t lines) {
  const auto fetch = [&]() __attribute__((always_inline)) {
    for (int64_t i = 0; i < lines; ++i, next += 32) _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
  };
  multiply<two>(a, blocks, b, c, fetch);
}

static inline void add_tiles(const float* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; i += 16)
    _mm512_store_ps(to + i, _mm512_add_ps(_mm512_load_ps(to + i), _mm512_load_ps(from + i)));
}

FLASHOVER_AVX512_END

}  // namespace flashover::cpu
