// What is the same for every architecture: the words of a target, one after the other.
#include "target/features.h"

namespace flashover::target {

std::string missing_feature(std::string_view target) {
  while (!target.empty()) {
    const size_t end = target.find(' ');
    const auto word = target.substr(0, end);
    if (!word.empty() && !has_feature(word)) return std::string(word);
    if (end == std::string_view::npos) break;
    target.remove_prefix(end + 1);
  }
  return {};
}

}  // namespace flashover::target
