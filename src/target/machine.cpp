// See machine.h: a table of words.
#include "target/machine.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/decimal.h"

namespace flashover::target {

Providers parse_machine(std::string_view words) {
  static constexpr std::pair<std::string_view, bool Providers::*> kWords[] = {{"onednn_bf16", &Providers::onednn_bf16},
                                                                              {"own_f32", &Providers::own_f32},
                                                                              {"own_bf16", &Providers::own_bf16},
                                                                              {"strict", &Providers::strict_numerics}};
  constexpr std::string_view kWrongPoints = "wrong_strided_points";
  constexpr std::string_view kThreads = "random_threads=";
  Providers out;
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
    if (word.empty()) continue;
    const auto* row =
        std::find_if(std::begin(kWords), std::end(kWords), [&](const auto& w) { return w.first == word; });
    if (row != std::end(kWords)) {
      out.*row->second = true;
    } else if (word == kWrongPoints) {
      out.onednn_strided_points = false;
    } else if (const auto n =
                   word.starts_with(kThreads) ? parse_number<int64_t>(word.substr(kThreads.size())) : std::nullopt) {
      out.random_threads = *n;
    } else {
      throw UserError("no machine has " + std::string(word));
    }
  }
  return out;
}

}  // namespace flashover::target
