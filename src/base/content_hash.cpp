// Multiplications that do not wait for each other.
#include "base/content_hash.h"

#include <cstring>

namespace flashover {
namespace {

constexpr uint64_t kPrime = 0x9E3779B97F4A7C15ull;

void add_blocks(uint64_t* lane, const char* p, size_t blocks) {
  for (; blocks > 0; --blocks, p += 64) {
    uint64_t w[8];
    std::memcpy(w, p, 64);
    for (int i = 0; i < 8; ++i) {
      lane[i] = (lane[i] ^ w[i]) * kPrime;
      lane[i] ^= lane[i] >> 29;
    }
  }
}

#if defined(__x86_64__)
using Lanes = uint64_t __attribute__((vector_size(64)));

// The same numbers with all lanes in one register: as fast as memory, where one core's multiplier is not.
__attribute__((target("avx512f,avx512dq"))) void add_blocks_avx512(uint64_t* lane, const char* p, size_t blocks) {
  Lanes lanes, w;
  std::memcpy(&lanes, lane, 64);
  for (; blocks > 0; --blocks, p += 64) {
    std::memcpy(&w, p, 64);
    lanes = (lanes ^ w) * kPrime;
    lanes ^= lanes >> 29;
  }
  std::memcpy(lane, &lanes, 64);
}

bool has_avx512() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
  return has;
}
#endif

void add_all(uint64_t* lane, const char* p, size_t blocks) {
#if defined(__x86_64__)
  if (has_avx512()) return add_blocks_avx512(lane, p, blocks);
#endif
  add_blocks(lane, p, blocks);
}

}  // namespace

// Eight independent multiply chains: bound by memory, not by the latency of a multiplication.
uint64_t content_hash(const void* data, size_t bytes) {
  const auto* p = static_cast<const char*>(data);
  uint64_t lane[8];
  for (uint64_t i = 0; i < 8; ++i) lane[i] = kPrime * (2 * i + 1);
  const size_t left = bytes % 64;
  add_all(lane, p, bytes / 64);
  p += bytes - left;
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
