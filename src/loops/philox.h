// The numbers of torch's CUDA generator: Philox 4x32 with ten rounds (Salmon et al., "Parallel random numbers: as easy
// as 1, 2, 3"), and which of them an element gets (prim.uniform in ops/prims.def).
#pragma once
#include <array>
#include <cmath>
#include <cstdint>

namespace flashover::loops {

inline std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0], b = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(a)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

struct Drawn {
  int64_t thread, call, lane;
};
inline Drawn drawn(int64_t i, int64_t threads, int64_t width) {
  if (width == 1) return {i % threads, i / threads / 4, i / threads % 4};
  const int64_t v = i / width;
  return {v % threads, v / threads * (width > 4 ? width / 4 : 1) + i % width / 4, i % width % 4};
}

inline float uniform(uint32_t bits) { return std::fma(static_cast<float>(bits), 0x1p-32f, 0x1p-33f); }
inline float normal(const std::array<uint32_t, 4>& bits, int64_t lane) {
  constexpr float kTurn = 0x1p-32f * 6.2831855f;
  const int64_t first = lane / 2 * 2;
  const float angle = std::fma(static_cast<float>(bits[static_cast<size_t>(first) + 1]), kTurn, kTurn / 2);
  const float radius = std::sqrt(-2.0f * std::log(uniform(bits[static_cast<size_t>(first)])));
  return (lane % 2 ? std::cos(angle) : std::sin(angle)) * radius;
}

}  // namespace flashover::loops
