// The bytes of binary forms: zigzag varints, lists with their length first, texts.
//
// Reading treats every byte as hostile: a length is believed only as far as bytes are left for its items, so memory
// stays within a small multiple of the input.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/hash.h"

namespace flashover {

class ByteWriter {
 public:
  std::string out;

  void raw(uint64_t v, int bytes) {
    for (int i = 0; i < bytes; ++i) out += static_cast<char>(v >> (8 * i));
  }
  void unsigned_(uint64_t v) {
    for (; v >= 0x80; v >>= 7) out += static_cast<char>(v | 0x80);
    out += static_cast<char>(v);
  }
  void integer(int64_t v) { unsigned_((static_cast<uint64_t>(v) << 1) ^ static_cast<uint64_t>(v >> 63)); }
  void text(std::string_view s) {
    unsigned_(s.size());
    out += s;
  }
  void hash(const Hash128& h) {
    raw(h.lo, 8);
    raw(h.hi, 8);
  }
  template <typename List, typename F>
  void list(const List& l, F&& f) {
    unsigned_(l.size());
    for (const auto& x : l) f(x);
  }
};

class ByteReader {
 public:
  // form: what is read, for errors: "plan".
  ByteReader(std::string_view in, const char* form) : in_(in), form_(form) {}

  [[noreturn]] void fail(const char* what) const { throw UserError("damaged " + std::string(form_) + ": " + what); }
  size_t left() const { return in_.size() - at_; }
  std::string_view take(size_t n) {
    if (n > left()) fail("cut short");
    const auto s = in_.substr(at_, n);
    at_ += n;
    return s;
  }
  uint8_t byte() { return static_cast<uint8_t>(take(1)[0]); }
  uint64_t raw(int bytes) {
    const auto s = take(static_cast<size_t>(bytes));
    uint64_t v = 0;
    for (int i = 0; i < bytes; ++i) v |= uint64_t{static_cast<uint8_t>(s[static_cast<size_t>(i)])} << (8 * i);
    return v;
  }
  Hash128 hash() {
    const uint64_t lo = raw(8);
    return {lo, raw(8)};
  }
  uint64_t unsigned_() {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t b = byte();
      if (shift == 63 && b > 1) fail("number too long");
      v |= uint64_t{b & 0x7fu} << shift;
      if (b < 0x80) return v;
    }
    fail("number too long");
  }
  int64_t integer() {
    const uint64_t v = unsigned_();
    return static_cast<int64_t>((v >> 1) ^ (~(v & 1) + 1));
  }
  int32_t small() {
    const int64_t v = integer();
    if (v < INT32_MIN || v > INT32_MAX) fail("number out of range");
    return static_cast<int32_t>(v);
  }
  std::string text() { return std::string(take(length(1))); }
  bool boolean() {
    const uint8_t b = byte();
    if (b > 1) fail("not a boolean");
    return b != 0;
  }
  // How many items follow, each of at least `bytes` bytes.
  size_t length(size_t bytes) {
    const uint64_t n = unsigned_();
    if (n > left() / bytes) fail("list longer than the file");
    return static_cast<size_t>(n);
  }
  // Items are added one by one: a lying length runs into the end of the input before memory grows.
  template <typename T, typename F>
  std::vector<T> list(size_t bytes, F&& f) {
    std::vector<T> out;
    const size_t n = length(bytes);
    out.reserve(std::min<size_t>(n, 64));
    for (size_t i = 0; i < n; ++i) out.push_back(f());
    return out;
  }
  template <typename Enum>
  Enum enumeration(int limit) {
    const int64_t v = integer();
    if (v < 0 || v >= limit) fail("unknown enumerator");
    return static_cast<Enum>(v);
  }

 private:
  std::string_view in_;
  const char* form_;
  size_t at_ = 0;
};

}  // namespace flashover
