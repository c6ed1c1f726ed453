// Text tests: every *.ir below a folder holds cases
//     # what the case shows
//     machine: onednn_bf16   (what the stage's driver reads; may be left out)
//     run: cse fold          (what to run, separated by spaces)
//     graph { ... }
//     ->
//     graph { ... }          or "declined: reason"
// separated by lines of ----. FLASHOVER_BLESS=1 rewrites the parts after ->.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"

namespace flashover::golden {

struct Case {
  std::string comment;
  std::string machine;  // without "machine:", empty: there was none
  std::vector<std::string> names;
  std::string input;
  std::string expected;
};
// The text that comes out. May throw Declined.
using Run = std::function<std::string(const Case&)>;

namespace detail {

inline std::string trim(std::string s) {
  const auto blank = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!s.empty() && blank(s.back())) s.pop_back();
  size_t start = 0;
  while (start < s.size() && blank(s[start])) ++start;
  return s.substr(start);
}

// Takes a line "label: rest" off the front.
inline std::string take_line(std::string& text, const std::string& label) {
  if (!text.starts_with(label)) return "";
  const size_t end = std::min(text.find('\n'), text.size());
  const std::string rest = trim(text.substr(label.size(), end - label.size()));
  text = trim(text.substr(end));
  return rest;
}

inline Case parse(std::string text) {
  Case c;
  text = trim(text);
  while (text.starts_with("#")) {
    const size_t end = text.find('\n');
    c.comment += text.substr(0, end) + "\n";
    text = trim(text.substr(end));
  }
  c.machine = take_line(text, "machine:");
  std::istringstream names(take_line(text, "run:"));
  for (std::string name; names >> name;) c.names.push_back(name);
  const size_t arrow = text.find("\n->");
  c.input = trim(text.substr(0, arrow));
  if (arrow != std::string::npos) c.expected = trim(text.substr(arrow + 3));
  return c;
}

inline std::string print(const Case& c, const std::string& result) {
  std::string out = c.comment + (c.machine.empty() ? "" : "machine: " + c.machine + "\n") + "run:";
  for (const std::string& name : c.names) out += " " + name;
  return out + "\n" + c.input + "\n->\n" + result + "\n";
}

inline std::vector<Case> read(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream all;
  all << in.rdbuf();
  std::vector<Case> cases;
  std::string text;
  for (std::string line; std::getline(all, line);) {
    if (line.starts_with("----")) {
      cases.push_back(parse(std::move(text)));
      text.clear();
    } else {
      text += line + "\n";
    }
  }
  cases.push_back(parse(std::move(text)));
  return cases;
}

}  // namespace detail

// Runs all cases of src/<stage>. Each name in `names` must be run by a case of the file of its name.
inline void check_folder(const std::string& stage, const Run& run, std::set<std::string> names = {}) {
  // Tests run in the build folder; by hand one starts from the root.
  std::filesystem::path root = std::filesystem::path(__FILE__).parent_path().parent_path() / stage;
  if (!std::filesystem::exists(root)) root = "src/" + stage;
  const bool bless = std::getenv("FLASHOVER_BLESS") != nullptr;
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    const std::filesystem::path& path = entry.path();
    if (path.extension() != ".ir") continue;
    ++files;
    std::string blessed;
    for (const Case& c : detail::read(path)) {
      ASSERT_FALSE(c.names.empty()) << path << ": a case without run:";
      for (const std::string& name : c.names)
        if (name == path.stem()) names.erase(name);
      std::string got;
      try {
        got = detail::trim(run(c));
      } catch (const Declined& d) {
        got = std::string("declined: ") + d.what();
      }
      if (bless) {
        blessed += (blessed.empty() ? "" : "----\n") + detail::print(c, got);
        continue;
      }
      EXPECT_FALSE(c.expected.empty()) << path << ": a case without -> (bless it)";
      EXPECT_EQ(got, c.expected) << path << "\n" << c.comment;
    }
    if (bless) std::ofstream(path) << blessed;
  }
  EXPECT_GT(files, 0);
  for (const std::string& name : names) ADD_FAILURE() << "no case of src/" << stage << " runs " << name;
}

}  // namespace flashover::golden
