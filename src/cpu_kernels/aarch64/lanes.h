// Arithmetic on 4 floats, as x86/lanes.h on 16.
#pragma once
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace flashover::cpu::neon {

using Vec = float32x4_t;
static inline Vec spread(float x) { return vdupq_n_f32(x); }
static inline Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
static inline Vec fnma(Vec a, Vec b, Vec c) { return vfmsq_f32(c, a, b); }
static inline Vec least(Vec a, Vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline Vec most(Vec a, Vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline Vec nearest(Vec x) { return vrndnq_f32(x); }
// n: whole numbers from -126 to 254, in two steps.
static inline Vec times_power_of_two(Vec x, Vec n) {
  const int32x4_t whole = vcvtq_s32_f32(n), half = vshrq_n_s32(whole, 1), bias = vdupq_n_s32(127);
  const auto power = [&](int32x4_t e) __attribute__((always_inline)) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(e, bias), 23));
  };
  return vmulq_f32(vmulq_f32(x, power(half)), power(vsubq_s32(whole, half)));
}
static inline Vec divide(Vec a, Vec b) { return vdivq_f32(a, b); }
static inline Vec quotient(Vec a, Vec b) { return vdivq_f32(a, b); }
static inline Vec where_size_is(float size, Vec x, Vec then, Vec otherwise) {
  return vbslq_f32(vceqq_f32(vabsq_f32(x), spread(size)), then, otherwise);
}
#include "cpu_kernels/lane_math.h"

}  // namespace flashover::cpu::neon
