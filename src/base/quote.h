// Strings in quotes, for text forms and JSON.
#pragma once
#include <string>
#include <string_view>

namespace flashover {

// A quote and a backslash stand behind a backslash; for any other character escape(character) says what stands for it,
// "" where it stands for itself.
template <typename Escape>
std::string in_quotes(std::string_view text, Escape&& escape) {
  std::string out = "\"";
  for (const char c : text) {
    const std::string instead = c == '"' || c == '\\' ? std::string{'\\', c} : escape(static_cast<unsigned char>(c));
    if (instead.empty())
      out += c;
    else
      out += instead;
  }
  return out + '"';
}

}  // namespace flashover
