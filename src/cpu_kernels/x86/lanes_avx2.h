// Arithmetic on 8 floats, as lanes.h on 16. Include between FLASHOVER_AVX2_BEGIN and _END, after all other headers.
#pragma once
#include <immintrin.h>

#include <cstdint>

#define FLASHOVER_AVX2_BEGIN _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,fma\")")
#define FLASHOVER_AVX2_END _Pragma("GCC pop_options")

namespace flashover::cpu::avx2 {

FLASHOVER_AVX2_BEGIN

using Vec = __m256;
static inline Vec spread(float x) { return _mm256_set1_ps(x); }
static inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline Vec fnma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
static inline Vec least(Vec a, Vec b) { return _mm256_min_ps(a, b); }
static inline Vec most(Vec a, Vec b) { return _mm256_max_ps(a, b); }
static inline Vec nearest(Vec x) { return _mm256_round_ps(x, 0x08); }
// n: whole numbers from -126 to 254, in two steps.
static inline Vec times_power_of_two(Vec x, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
  const auto power = [&](__m256i e) __attribute__((always_inline)) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, bias), 23));
  };
  return _mm256_mul_ps(_mm256_mul_ps(x, power(half)), power(_mm256_sub_epi32(whole, half)));
}
static inline Vec divide(Vec a, Vec b) { return _mm256_div_ps(a, b); }
static inline Vec quotient(Vec a, Vec b) { return _mm256_div_ps(a, b); }
static inline Vec where_size_is(float size, Vec x, Vec then, Vec otherwise) {
  const Vec magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.f), x);
  return _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps(magnitude, _mm256_set1_ps(size), _CMP_EQ_OQ));
}
#include "cpu_kernels/lane_math.h"

FLASHOVER_AVX2_END

}  // namespace flashover::cpu::avx2
