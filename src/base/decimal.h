// Numbers and characters as text and back, spelled as in the C locale whatever locale the process has set: a GUI
// toolkit may choose a decimal comma at any time, and printf, strtod, std::to_string(double) and isalnum follow it.
// Code outside base uses these instead (tests/sources/test_layering.py holds it to that).
#pragma once
#include <charconv>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flashover {

// "%.<digits>g" and "%.<digits>f" of the C locale.
std::string decimal(double value, int digits);
std::string fixed_decimal(double value, int digits);
// At least `width` digits with zeros in front; a negative number is not padded.
std::string padded(int64_t value, int width);
std::string hexadecimal(uint64_t value, int width);

// The whole text as a number of that type, or nothing: no spaces, no leading plus, no rest, in range.
template <std::integral T>
std::optional<T> parse_number(std::string_view text, int base = 10) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}
template <std::floating_point T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// ASCII only.
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
constexpr bool is_letter_or_digit(char c) { return is_letter(c) || is_digit(c); }
constexpr bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

}  // namespace flashover
