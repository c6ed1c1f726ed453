// Stable 128-bit content hash (same on every host and run): cache keys and kernel identity. Not cryptographic.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace flashover {

struct Hash128 {
  uint64_t lo = 0;
  uint64_t hi = 0;
  bool operator==(const Hash128&) const = default;
  std::string hex() const;  // 32 lower-case digits
};

// Incremental hasher; feeding "ab" then "c" equals feeding "abc" (callers add separators or lengths).
class Hasher {
 public:
  Hasher& bytes(const void* data, size_t size);
  Hasher& text(std::string_view s);  // length-prefixed
  Hasher& number(uint64_t v);
  Hash128 finish() const;

 private:
  uint64_t a_ = 0x9E3779B97F4A7C15ull, b_ = 0xC2B2AE3D27D4EB4Full;
  uint64_t length_ = 0;
  unsigned char tail_[8] = {};
  unsigned tail_size_ = 0;
  void word(uint64_t w);
};

}  // namespace flashover

template <>
struct std::hash<flashover::Hash128> {
  size_t operator()(const flashover::Hash128& h) const noexcept { return h.lo ^ (h.hi * 31); }
};
