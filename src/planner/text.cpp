// The text of a schedule, and options as words.
#include <string>
#include <utility>

#include "base/check.h"
#include "base/decimal.h"
#include "planner/planner.h"

namespace flashover::planner {
namespace {

struct Number {
  const char* name;
  void (*set)(Options&, int64_t);
};
constexpr Number kNumbers[] = {
    {"threads", [](Options& o, int64_t n) { o.loops.threads = static_cast<int>(n); }},
    {"split_numel", [](Options& o, int64_t n) { o.loops.split_numel = n; }},
    {"order_by_dims", [](Options& o, int64_t n) { o.loops.order_by_dims = n != 0; }},
    {"processors", [](Options& o, int64_t n) { o.loops.processors = static_cast<int>(n); }},
    {"memory_limit", [](Options& o, int64_t n) { o.memory_limit = n; }},
    {"working_limit", [](Options& o, int64_t n) { o.working_limit = n; }},
    {"apart", [](Options& o, int64_t n) { o.apart = n; }},
    {"late_outputs", [](Options& o, int64_t n) { o.late_outputs = n != 0; }},
    {"own_operators", [](Options& o, int64_t n) { o.own_operators = n != 0; }},
    {"exact", [](Options& o, int64_t n) { o.exact = n != 0; }},
};

void set(Options& o, std::string_view word) {
  const size_t equals = word.find('=');
  const auto value = equals == word.npos ? 1 : parse_number<int64_t>(word.substr(equals + 1));
  for (const Number& n : kNumbers)
    if (value && word.substr(0, equals) == n.name) return n.set(o, *value);
  throw UserError("no option of the planner: " + std::string(word));
}

// The number behind a letter: "t12".
plan::TensorId tensor(std::string_view word) {
  const auto number = word.starts_with('t') ? parse_number<plan::TensorId>(word.substr(1)) : std::nullopt;
  if (!number) throw UserError("a tensor expected, not '" + std::string(word) + "'");
  return *number;
}

// Takes the text before `mark`, and the mark, off the front.
std::string_view take(std::string_view& text, std::string_view mark) {
  const size_t at = text.find(mark);
  const std::string_view out = text.substr(0, at);
  text.remove_prefix(at == text.npos ? text.size() : at + mark.size());
  return out;
}

}  // namespace

std::string print(const Schedule& s) {
  std::string out = plan::print(s.plan);
  for (size_t t = 0; t < s.over.size(); ++t)
    if (s.over[t] >= 0) out += "over t" + std::to_string(t) + " t" + std::to_string(s.over[t]) + "\n";
  for (const loops::Kernel& k : s.kernels) out += loops::print(k);
  return out;
}

Schedule parse(std::string_view text) {
  constexpr std::string_view kEnd = "\n}\n";
  Schedule s;
  const std::string_view whole = text, plan = take(text, kEnd);
  s.plan = plan::parse(whole.substr(0, plan.size() + kEnd.size()));
  while (!text.empty()) {
    const std::string_view rest = text;
    if (text.starts_with("over ")) {
      take(text, " ");
      const auto t = static_cast<size_t>(tensor(take(text, " ")));
      if (s.over.empty()) s.over.assign(s.plan.tensors.size(), -1);
      if (t >= s.over.size()) throw UserError("no tensor t" + std::to_string(t));
      s.over[t] = tensor(take(text, "\n"));
    } else {
      const std::string_view kernel = take(text, kEnd);
      s.kernels.push_back(loops::parse(rest.substr(0, kernel.size() + kEnd.size())));
    }
  }
  return s;
}

Options parse_options(std::string_view words) {
  Options o;
  while (!words.empty())
    if (const std::string_view word = take(words, " "); !word.empty()) set(o, word);
  return o;
}

}  // namespace flashover::planner
