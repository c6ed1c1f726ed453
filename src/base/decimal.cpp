// Printing numbers without the process's locale, with std::to_chars.
#include "base/decimal.h"

#include <array>

#include "base/check.h"

namespace flashover {
namespace {

// DBL_MAX has 309 digits before the point.
constexpr int kMostDigits = 60, kLength = 320 + kMostDigits;

std::string printed(double value, std::chars_format format, int digits) {
  FLASHOVER_CHECK(digits >= 0 && digits <= kMostDigits) << "digits " << digits;
  std::array<char, kLength> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value, format, digits);
  FLASHOVER_CHECK(error == std::errc()) << "a number that does not fit";
  return {text.data(), end};
}

template <typename T>
std::string in_base(T value, int base, int width) {
  std::array<char, 72> text;
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value, base);
  std::string out(text.data(), end);
  if (out[0] != '-' && out.size() < static_cast<size_t>(width))
    out.insert(0, static_cast<size_t>(width) - out.size(), '0');
  return out;
}

}  // namespace

std::string decimal(double value, int digits) { return printed(value, std::chars_format::general, digits); }
std::string fixed_decimal(double value, int digits) { return printed(value, std::chars_format::fixed, digits); }
std::string padded(int64_t value, int width) { return in_base(value, 10, width); }
std::string hexadecimal(uint64_t value, int width) { return in_base(value, 16, width); }

}  // namespace flashover
