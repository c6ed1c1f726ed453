// Line by line, since std::regex recurses over what it matches. The binaries are no part of the text.
#include "compile/edit_plan.h"

#include <cstdlib>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace flashover::compile {
namespace {

constexpr const char* kEdits = "FLASHOVER_TEST_EDIT_PLAN";

struct Edit {
  std::regex pattern;
  std::string text;
};

std::vector<Edit> edits_of(const std::string& lines) {
  std::vector<Edit> out;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);)
    if (const size_t tab = line.find('\t'); tab != std::string::npos)
      out.push_back({std::regex(line.substr(0, tab)), line.substr(tab + 1)});
  return out;
}

}  // namespace

bool edits_plans() { return std::getenv(kEdits) != nullptr; }

plan::Plan edited(plan::Plan p) {
  const char* asked = std::getenv(kEdits);
  if (!asked) return p;
  const std::vector<Edit> edits = edits_of(asked);
  std::istringstream in(plan::print(p));
  std::string text;
  bool changed = false;
  for (std::string line; std::getline(in, line);) {
    bool kept = true;
    for (const Edit& e : edits) {
      if (!std::regex_search(line, e.pattern)) continue;
      changed = true;
      kept = e.text != "-";
      if (kept) line = std::regex_replace(line, e.pattern, e.text);
    }
    if (kept) text += line + "\n";
  }
  if (!changed) return p;
  plan::Plan out = plan::parse(text);
  for (size_t i = 0; i < out.binaries.size(); ++i) out.binaries[i] = std::move(p.binaries.at(i));
  return out;
}

}  // namespace flashover::compile
