// Through the text form; the binaries are no part of it.
#include "compile/edit_plan.h"

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flashover::compile {
namespace {

constexpr const char* kEdits = "FLASHOVER_TEST_EDIT_PLAN";

std::vector<std::string> split_at(std::string_view text, char separator) {
  std::vector<std::string> out;
  while (true) {
    const size_t end = text.find(separator);
    out.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + 1);
  }
}

// Whether the line stays.
bool edit(std::string& line, const std::vector<std::string>& how) {
  if (how.size() != 3 || line.find(how[0]) == std::string::npos) return true;
  if (how[1].empty()) return false;
  if (const size_t at = line.find(how[1]); at != std::string::npos) line.replace(at, how[1].size(), how[2]);
  return true;
}

}  // namespace

bool edits_plans() { return std::getenv(kEdits) != nullptr; }

plan::Plan edited(plan::Plan p) {
  const char* asked = std::getenv(kEdits);
  if (!asked) return p;
  const std::string before = plan::print(p);
  std::string text;
  for (std::string& line : split_at(before, '\n')) {
    bool stays = true;
    for (const std::string& e : split_at(asked, '\n')) stays = stays && edit(line, split_at(e, '\t'));
    if (stays) text += line + "\n";
  }
  if (text == before + "\n") return p;
  plan::Plan out = plan::parse(text);
  for (size_t i = 0; i < out.binaries.size(); ++i) out.binaries[i] = std::move(p.binaries.at(i));
  return out;
}

}  // namespace flashover::compile
