// Arithmetic on 16 floats for the hand-written operators. Include between FLASHOVER_AVX512_BEGIN and _END, after all
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

// NaN passes: min and max return their second operand then.
static inline __m512 within(__m512 x, float low, float high) {
  return _mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), x));
}

// 1 ulp. Never a denormal (they cost a hundred times a normal number): exp(-87) stands for all below.
static inline __m512 exp16(__m512 x) {
  x = within(x, -87.f, 100.f);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.442695041f)), 0x08);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.f)));
  return _mm512_scalef_ps(p, n);
}

// exp(x) for x <= 0, and 0 from `least` down, which leaves room for products before they are denormal.
static inline __m512 exp16_or_zero(__m512 x, float least) {
  const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(least), _CMP_NLT_UQ);  // NaN counts
  return _mm512_maskz_mov_ps(normal, exp16(x));
}

static inline __m512 sigmoid16(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.f);
  return _mm512_div_ps(one, _mm512_add_ps(one, exp16(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

// x / (1 + exp(-x))
static inline __m512 silu16(__m512 x) {
  const __m512 e = exp16(_mm512_sub_ps(_mm512_setzero_ps(), x));
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.f), e));
}

// x (1 + erf(x / sqrt(2))) / 2, erf as a quotient of polynomials: 1.1e-6 at most (ATen's: 1.2e-6). What goes through
// exp waits three times as long, for itself.
static inline __m512 gelu16(__m512 x) {
  const __m512 c = within(_mm512_mul_ps(x, _mm512_set1_ps(0.70710678f)), -4.f, 4.f), s = _mm512_mul_ps(c, c);
  __m512 p = _mm512_set1_ps(-2.72614225801306e-10f), q = _mm512_set1_ps(-1.45660718464996e-05f);
  p = _mm512_fmadd_ps(p, s, _mm512_set1_ps(2.77068142495902e-08f));
  q = _mm512_fmadd_ps(q, s, _mm512_set1_ps(-2.13374055278905e-04f));
  p = _mm512_fmadd_ps(p, s, _mm512_set1_ps(-2.10102402082508e-06f));
  q = _mm512_fmadd_ps(q, s, _mm512_set1_ps(-1.68282697438203e-03f));
  p = _mm512_fmadd_ps(p, s, _mm512_set1_ps(-5.69250639462346e-05f));
  q = _mm512_fmadd_ps(q, s, _mm512_set1_ps(-7.37332916720468e-03f));
  p = _mm512_fmadd_ps(p, s, _mm512_set1_ps(-7.34990630326855e-04f));
  q = _mm512_fmadd_ps(q, s, _mm512_set1_ps(-1.42647390514189e-02f));
  p = _mm512_fmadd_ps(p, s, _mm512_set1_ps(-2.95459980854025e-03f));
  p = _mm512_fmadd_ps(p, s, _mm512_set1_ps(-1.60960333262415e-02f));
  __m512 inverse = _mm512_rcp14_ps(q);
  inverse = _mm512_mul_ps(inverse, _mm512_fnmadd_ps(q, inverse, _mm512_set1_ps(2.f)));
  __m512 erf = _mm512_mul_ps(_mm512_mul_ps(c, p), inverse);
  // Exactly -1 and 1 at the ends: what is left of 1 is multiplied by x.
  const __mmask16 end = _mm512_cmp_ps_mask(_mm512_abs_ps(c), _mm512_set1_ps(4.f), _CMP_EQ_OQ);
  erf = _mm512_mask_mul_ps(erf, end, c, _mm512_set1_ps(0.25f));
  const __m512 half = _mm512_mul_ps(x, _mm512_set1_ps(0.5f));
  return _mm512_fmadd_ps(half, erf, half);
}

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x sigmoid(2 sqrt(2/pi) (...))
static inline __m512 gelu_tanh16(__m512 x) {
  const __m512 cubed = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
  const __m512 u = _mm512_fmadd_ps(cubed, _mm512_set1_ps(0.044715f), x);
  const __m512 e = exp16(_mm512_mul_ps(u, _mm512_set1_ps(-1.5957691216f)));
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.f), e));
}

static inline __m512 same16(__m512 x) { return x; }
static inline __m512 relu16(__m512 x) { return _mm512_max_ps(_mm512_setzero_ps(), x); }  // NaN stays

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
