// Places: all variables at their least, small numbers, larger ones, and mixtures of very small and large.
#include "sym/samples.h"

#include <algorithm>

namespace flashover::sym {
namespace {

constexpr size_t kLargePlace = 2;
constexpr int64_t kLowestTried = -1000;  // of a variable without a least value

// The same in every process: what is proven must not depend on anything else.
uint64_t hash_of_name(std::string_view name) {
  uint64_t h = 0xCBF29CE484222325ull;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  h = (h ^ (h >> 31)) * 0x9E3779B97F4A7C15ull;
  return h ^ (h >> 29);
}

int64_t sample_of(Kind kind, int64_t a, int64_t b) {
  int64_t out = 0;
  switch (kind) {
    case Kind::kAdd:
      return __builtin_add_overflow(a, b, &out) ? kNoSample : out;
    case Kind::kMul:
      return __builtin_mul_overflow(a, b, &out) ? kNoSample : out;
    case Kind::kFloorDiv:
    case Kind::kMod: {
      if (b == 0 || b == -1) return b == 0 ? kNoSample : kind == Kind::kMod ? 0 : -a;
      const int64_t quotient = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
      return kind == Kind::kFloorDiv ? quotient : a - quotient * b;
    }
    case Kind::kMin:
      return std::min(a, b);
    case Kind::kMax:
      return std::max(a, b);
    case Kind::kConst:
    case Kind::kVar:
      break;
  }
  return kNoSample;
}

template <typename Fails>
bool somewhere(Expr a, Expr b, const Fails& fails) {
  const Samples &x = samples(a), &y = samples(b);
  for (size_t i = 0; i < kSamples; ++i)
    if (x[i] != kNoSample && y[i] != kNoSample && fails(x[i], y[i])) return true;
  return false;
}

}  // namespace

bool somewhere_above(Expr a, Expr b, int64_t times) {
  return somewhere(a, b, [times](int64_t x, int64_t y) {
    int64_t often = 0;
    return !__builtin_mul_overflow(x, times, &often) && often > y;
  });
}
bool somewhere_not_below(Expr a, Expr b) {
  return somewhere(a, b, [](int64_t x, int64_t y) { return x >= y; });
}
bool somewhere_apart(Expr a, Expr b) {
  return somewhere(a, b, [](int64_t x, int64_t y) { return x != y; });
}
bool somewhere_equal(Expr a, Expr b) {
  return somewhere(a, b, [](int64_t x, int64_t y) { return x == y; });
}

bool usually_below(Expr a, Expr b) {
  const int64_t x = samples(a)[kLargePlace], y = samples(b)[kLargePlace];
  return x != kNoSample && y != kNoSample ? x < y : a.hint() < b.hint();
}

Samples samples_of_constant(int64_t value) {
  Samples out;
  out.fill(value);
  return out;
}

Samples samples_of_variable(std::string_view name, Range range) {
  const uint64_t h = hash_of_name(name);
  const auto part = [h](int shift, uint64_t below) { return static_cast<int64_t>((h >> shift) % below); };
  const auto mixed = [&](int bit, bool large) {
    return (h >> bit & 1) == (large ? 1 : 0) ? 50'000 + part(bit + 1, 9973) : part(bit + 1, 4);
  };
  Samples out = {0, 1 + part(0, 61), 10'007 + part(7, 4001), mixed(17, true), mixed(17, false), mixed(29, true)};
  const int64_t lo = range.lo == -Range::kInf ? std::min(range.hi, kLowestTried) : range.lo;
  for (int64_t& x : out) {
    if (range.hi != Range::kInf && range.hi - lo < x) x %= range.hi - lo + 1;
    x += lo;
  }
  return out;
}

Samples samples_below(const Samples& variable, const Samples& extent) {
  Samples out;
  for (size_t i = 0; i < kSamples; ++i)
    out[i] = extent[i] == kNoSample || extent[i] <= 0 ? kNoSample : variable[i] % extent[i];
  return out;
}

Samples samples_of_parts(Kind kind, std::span<const Expr> operands) {
  Samples out = samples(operands[0]);
  for (const Expr o : operands.subspan(1)) {
    const Samples& other = samples(o);
    for (size_t i = 0; i < kSamples; ++i)
      out[i] = out[i] == kNoSample || other[i] == kNoSample ? kNoSample : sample_of(kind, out[i], other[i]);
  }
  return out;
}

}  // namespace flashover::sym
