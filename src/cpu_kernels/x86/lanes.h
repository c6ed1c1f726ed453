// Arithmetic on 16 floats for the hand-written operators (functions: lane_math.h). Include between FLASHOVER_AVX512_BEGIN and _END, after all
// other headers: what stands between them is compiled for AVX512 and AMX, and must only run where has_avx512() and
// has_amx_bf16() say so.
#pragma once
#include <immintrin.h>

#include <cstdint>

// (GCC 12 warns of its own "undefined" vectors.)
#define FLASHOVER_AVX512_BEGIN                                                                                      \
  _Pragma("GCC diagnostic ignored \"-Wmaybe-uninitialized\"") _Pragma("GCC diagnostic ignored \"-Wuninitialized\"") \
      _Pragma("GCC push_options")                                                                                   \
          _Pragma("GCC target(\"avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,amx-tile,amx-bf16\")")
#define FLASHOVER_AVX512_END _Pragma("GCC pop_options")

namespace flashover::cpu {

FLASHOVER_AVX512_BEGIN

using Vec = __m512;
static inline Vec spread(float x) { return _mm512_set1_ps(x); }
static inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline Vec fnma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
static inline Vec least(Vec a, Vec b) { return _mm512_min_ps(a, b); }
static inline Vec most(Vec a, Vec b) { return _mm512_max_ps(a, b); }
static inline Vec nearest(Vec x) { return _mm512_roundscale_ps(x, 0x08); }
static inline Vec times_power_of_two(Vec x, Vec n) { return _mm512_scalef_ps(x, n); }
static inline Vec quotient(Vec a, Vec b) {  // 1 ulp or so
  const Vec r = _mm512_rcp14_ps(b);
  return _mm512_mul_ps(a, _mm512_mul_ps(r, _mm512_fnmadd_ps(b, r, _mm512_set1_ps(2.f))));
}
static inline Vec divide(Vec a, Vec b) { return _mm512_div_ps(a, b); }
static inline Vec where_size_is(float size, Vec x, Vec then, Vec otherwise) {
  return _mm512_mask_mov_ps(otherwise, _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(size), _CMP_EQ_OQ), then);
}
#include "cpu_kernels/lane_math.h"

// exp(x) for x <= 0, and 0 from `least` down, which leaves room for products before they are denormal.
static inline __m512 lane_exp_or_zero(__m512 x, float least) {
  const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(least), _CMP_NLT_UQ);  // NaN counts
  return _mm512_maskz_mov_ps(normal, lane_exp(x));
}

static inline __m512 load_bf16(const uint16_t* p, __mmask16 mask) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p)), 16));
}
static inline void store_bf16(uint16_t* p, __mmask16 mask, __m512 x) {
  _mm256_mask_storeu_epi16(p, mask, (__m256i)_mm512_cvtneps_pbh(x));
}
static inline __mmask16 first_lanes(int64_t n) {
  return n >= 16  ? static_cast<__mmask16>(0xffff)
         : n <= 0 ? static_cast<__mmask16>(0)
                  : static_cast<__mmask16>((1u << n) - 1);
}

// All eight tiles 16 rows of 64 bytes. (A constant: compilers do not see that the instruction reads all 64 bytes, and
// leave out stores that only it would read.)
static inline void configure_tiles() {
  alignas(64) static constexpr uint8_t kConfig[64] = {
      1,  0, 0,  0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 64, 0, 64, 0,  64, 0,  64, 0,  64, 0,
      64, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0, 0,  0, 16, 16, 16, 16, 16, 16, 16, 16};
  _tile_loadconfig(kConfig);
}

// Tiles 0 to 3 are the sums of 16 x 16, or of two by two such tiles, which lie one behind the other in memory.
template <bool two>
static inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  if (two) {
    _tile_zero(2);
    _tile_zero(3);
  }
}
template <bool two>
static inline void load_sums(const float* c) {
  _tile_loadd(0, c, 64);
  _tile_loadd(1, c + 256, 64);
  if (two) {
    _tile_loadd(2, c + 512, 64);
    _tile_loadd(3, c + 768, 64);
  }
}
template <bool two>
static inline void store_sums(float* c) {
  _tile_stored(0, c, 64);
  _tile_stored(1, c + 256, 64);
  if (two) {
    _tile_stored(2, c + 512, 64);
    _tile_stored(3, c + 768, 64);
  }
}

FLASHOVER_AVX512_END

}  // namespace flashover::cpu
