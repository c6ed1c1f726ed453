// Small text tools. Non-test code uses no iostreams: they drag locale state along, which breaks when the extension and
// torch bring different copies of the C++ library into one process, and they cost compile time.
#pragma once
#include <concepts>
#include <string>
#include <string_view>
#include <vector>

namespace flashover {

template <typename T>
concept HasStr = requires(const T& v) {
  { str(v) } -> std::convertible_to<std::string>;
};

// Appends one value as `stream << value` would: text, characters, numbers, and what has str(value).
template <typename T>
void append_text(std::string& out, const T& value) {
  if constexpr (std::is_same_v<T, bool>)
    out += value ? '1' : '0';
  else if constexpr (std::is_same_v<T, char>)
    out += value;
  else if constexpr (std::is_convertible_v<const T&, std::string_view>)
    out += std::string_view(value);
  else if constexpr (std::is_enum_v<T> && !HasStr<T>)
    out += std::to_string(static_cast<long long>(value));
  else if constexpr (std::is_arithmetic_v<T>)
    out += std::to_string(value);
  else
    out += str(value);
}

// The parts of `text` between separators; a separator at the end ends the last part.
inline std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return parts;
}

// "" on success, else why the file could not be written. An existing file is replaced.
std::string write_text_file(const std::string& path, std::string_view text);
// False when the file cannot be read.
bool read_text_file(const std::string& path, std::string& text);

}  // namespace flashover
