// The text form of locations.
#include "graph/checkpoint.h"

#include <charconv>

namespace flashover::graph {
namespace {

constexpr std::string_view kMark = " [checkpoint ";
constexpr std::string_view kSelections[] = {"]", " prefer save]", " save]"};  // by Selection

}  // namespace

std::string str(const Location& location) {
  if (location.checkpoint < 0) return location.text;
  return location.text + std::string(kMark) + std::to_string(location.checkpoint) +
         std::string(kSelections[static_cast<size_t>(location.selection)]);
}

Location parse_location(std::string_view text) {
  const size_t at = text.rfind(kMark);
  if (at == std::string_view::npos) return {std::string(text)};
  const std::string_view mark = text.substr(at + kMark.size());
  int32_t number = -1;
  const auto [end, error] = std::from_chars(mark.data(), mark.data() + mark.size(), number);
  const std::string_view rest = mark.substr(static_cast<size_t>(end - mark.data()));
  for (Selection s : {Selection::kAgain, Selection::kPreferSave, Selection::kSave})
    if (error == std::errc() && number >= 0 && rest == kSelections[static_cast<size_t>(s)])
      return {std::string(text.substr(0, at)), number, s};
  return {std::string(text)};
}

}  // namespace flashover::graph
