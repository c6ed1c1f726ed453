// Multiplications that do not wait for each other.
#include "base/content_hash.h"

#include <cstring>

namespace flashover {

// Eight independent multiply chains: bound by memory, not by the latency of a multiplication.
uint64_t content_hash(const void* data, size_t bytes) {
  constexpr uint64_t kPrime = 0x9E3779B97F4A7C15ull;
  const auto* p = static_cast<const char*>(data);
  uint64_t lane[8];
  for (uint64_t i = 0; i < 8; ++i) lane[i] = kPrime * (2 * i + 1);
  size_t left = bytes;
  for (; left >= 64; left -= 64, p += 64) {
    uint64_t w[8];
    std::memcpy(w, p, 64);
    for (int i = 0; i < 8; ++i) {
      lane[i] = (lane[i] ^ w[i]) * kPrime;
      lane[i] ^= lane[i] >> 29;
    }
  }
  uint64_t tail[8] = {};
  std::memcpy(tail, p, left);
  uint64_t h = bytes;
  for (int i = 0; i < 8; ++i) {
    lane[i] = (lane[i] ^ tail[i]) * kPrime;
    h = (h ^ lane[i] ^ (lane[i] >> 32)) * kPrime;
    h ^= h >> 31;
  }
  return h;
}

}  // namespace flashover
