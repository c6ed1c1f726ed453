// See machine.h: a table of words.
#include "target/machine.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/decimal.h"

namespace flashover::target {

namespace {

template <typename Row, size_t n>
const Row* row_of(const Row (&rows)[n], std::string_view word) {
  const auto* row = std::find_if(std::begin(rows), std::end(rows), [&](const Row& r) { return r.first == word; });
  return row == std::end(rows) ? nullptr : row;
}

}  // namespace

Providers parse_machine(std::string_view words) {
  static constexpr std::pair<std::string_view, bool Providers::*> kWords[] = {
      {"onednn_bf16", &Providers::onednn_bf16},   {"slow_bf16", &Providers::slow_bf16},
      {"own_f32", &Providers::own_f32},           {"own_bf16", &Providers::own_bf16},
      {"split_f32", &Providers::split_f32},       {"panels", &Providers::panels},
      {"quick_panels", &Providers::quick_panels}, {"strict", &Providers::strict_numerics},
      {"eagers_bits", &Providers::eagers_bits},   {"batch_invariant", &Providers::batch_invariant}};
  static constexpr std::pair<std::string_view, int64_t Providers::*> kNumbers[] = {
      {"random_threads", &Providers::random_threads}, {"pack_budget", &Providers::pack_budget}};
  constexpr std::string_view kWrongPoints = "wrong_strided_points";
  Providers out;
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
    if (word.empty()) continue;
    if (const auto* row = row_of(kWords, word)) {
      out.*row->second = true;
    } else if (word == kWrongPoints) {
      out.onednn_strided_points = false;
    } else if (const auto* number = row_of(kNumbers, word.substr(0, word.find('=')))) {
      const auto n = parse_number<int64_t>(word.substr(std::min(word.size(), number->first.size() + 1)));
      if (!n) throw UserError("no number in " + std::string(word));
      out.*number->second = *n;
    } else {
      throw UserError("no machine has " + std::string(word));
    }
  }
  return out;
}

}  // namespace flashover::target
