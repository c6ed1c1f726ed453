// Mixes 64-bit words with splitmix64's finalizer. Its results are cache keys: a change here makes every cache miss.
#include "base/hash.h"

#include <cstring>

namespace flashover {
namespace {
uint64_t mix(uint64_t x) {  // finalizer of splitmix64 (Steele, Lea, Flood 2014)
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}
uint64_t rotl(uint64_t x, int r) { return (x << r) | (x >> (64 - r)); }
}  // namespace

void Hasher::word(uint64_t w) {
  a_ = mix(a_ ^ w) + rotl(b_, 23);
  b_ = mix(b_ + w * 0xFF51AFD7ED558CCDull) ^ rotl(a_, 41);
}

Hasher& Hasher::bytes(const void* data, size_t size) {
  const auto* p = static_cast<const unsigned char*>(data);
  length_ += size;
  while (size > 0) {
    size_t take = 8 - tail_size_ < size ? 8 - tail_size_ : size;
    std::memcpy(tail_ + tail_size_, p, take);
    tail_size_ += static_cast<unsigned>(take);
    p += take;
    size -= take;
    if (tail_size_ == 8) {
      uint64_t w;
      std::memcpy(&w, tail_, 8);
      word(w);
      tail_size_ = 0;
    }
  }
  return *this;
}

Hasher& Hasher::text(std::string_view s) { return number(s.size()).bytes(s.data(), s.size()); }

Hasher& Hasher::number(uint64_t v) { return bytes(&v, 8); }

Hash128 Hasher::finish() const {
  Hasher h = *this;
  uint64_t w = 0;
  std::memcpy(&w, tail_, tail_size_);
  h.word(w);
  h.word(length_);
  return {mix(h.a_), mix(h.b_ ^ h.a_)};
}

std::string Hash128::hex() const {
  static const char* digits = "0123456789abcdef";
  std::string out;
  for (uint64_t w : {hi, lo})
    for (int shift = 60; shift >= 0; shift -= 4) out += digits[(w >> shift) & 15];
  return out;
}

}  // namespace flashover
