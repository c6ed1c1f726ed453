// Software conversions of the 16-bit floats, round to nearest even.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

namespace flashover::loops {

inline float bf16_to_float(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }
inline uint16_t float_to_bf16(float f) {
  if (std::isnan(f)) return 0x7fc0;
  uint32_t u = std::bit_cast<uint32_t>(f);
  return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
inline float f16_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * std::ldexp(static_cast<float>(mantissa), -24);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}
inline uint16_t float_to_f16(float f) {
  const uint16_t sign = std::signbit(f) ? 0x8000 : 0;
  if (std::isnan(f)) return sign | 0x7e00;
  double a = std::fabs(static_cast<double>(f));
  if (a >= 65520.0) return sign | 0x7c00;
  int exponent = a == 0 ? -14 : std::max(std::ilogb(a), -14);
  // Mantissa steps of 2^(exponent-10); nearbyint rounds half to even, and a carry into the exponent comes out right.
  auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(a, 10 - exponent)));
  return static_cast<uint16_t>(sign | (static_cast<uint32_t>(exponent + 14) * 1024 + steps));
}

}  // namespace flashover::loops
