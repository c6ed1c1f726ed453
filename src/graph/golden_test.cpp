// Text in, text out: every *.ir below src/graph holds cases
//     machine: onednn_bf16   (what the machine has beside Providers' defaults; may be left out)
//     run: cse               (names of passes, separated by spaces)
//     graph { ... }
//     ->
//     graph { ... }          or "declined: reason"
// separated by lines of ----. FLASHOVER_BLESS=1 rewrites the parts after ->.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/check.h"
#include "graph/analysis/devices.h"
#include "graph/machine.h"
#include "graph/passes.h"

namespace flashover::graph {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string trim(std::string s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back()))) s.pop_back();
  size_t start = 0;
  while (start < s.size() && std::isspace(static_cast<unsigned char>(s[start]))) ++start;
  return s.substr(start);
}

std::string run_passes(const std::string& machine, const std::string& names, const std::string& input) {
  const Providers providers = parse_machine(machine);
  Graph g = parse(input);
  std::istringstream in(names);
  try {
    for (std::string name; in >> name;) {
      // Whatever is said of a whole graph a pass hands on.
      Graph marked = g;
      marked.facts.exact = true;
      const PassContext context{providers, device_of(g)};
      EXPECT_TRUE(run_pass(name, std::move(marked), context).facts.exact) << name;
      g = run_pass(name, std::move(g), context);
    }
  } catch (const Declined& d) {
    return std::string("declined: ") + d.what();
  }
  return trim(print(g));
}

// What a trace would have said of the operators that the cases write with.
void declare_writers() {
  ops::find("aten.strange_.default", {.mutates = 1});
  ops::find("aten.twin_.default", {.mutates = 1, .functional = "prim.add"});
}

// "----" separates cases; each is a comment, "run:", input, "->", expectation.
void run_file(const std::filesystem::path& path) {
  const std::string text = read(path);
  const bool bless = std::getenv("FLASHOVER_BLESS") != nullptr;
  std::string blessed;
  size_t at = 0;
  while (at < text.size()) {
    size_t end = text.find("\n----", at);
    std::string part = text.substr(at, end == std::string::npos ? std::string::npos : end - at);
    at = end == std::string::npos ? text.size() : std::min(text.size(), text.find('\n', end + 1) + 1);
    const size_t run = part.find("run:"), arrow = part.find("\n->");
    ASSERT_NE(run, std::string::npos) << path << ": a case without run:";
    const size_t line_end = part.find('\n', run);
    const std::string names = trim(part.substr(run + 4, line_end - run - 4));
    const std::string input =
        trim(part.substr(line_end, arrow == std::string::npos ? std::string::npos : arrow - line_end));
    const size_t first = part.find("machine:");
    const bool has_machine = first < run;
    const std::string machine = has_machine ? trim(part.substr(first + 8, part.find('\n', first) - first - 8)) : "";
    const std::string head = trim(part.substr(0, has_machine ? first : run));
    const std::string got = run_passes(machine, names, input);
    if (bless) {
      if (!blessed.empty()) blessed += "----\n";
      blessed += head + (head.empty() ? "" : "\n") + (has_machine ? "machine: " + machine + "\n" : "");
      blessed += "run: " + names + "\n" + input + "\n->\n" + got + "\n";
      continue;
    }
    ASSERT_NE(arrow, std::string::npos) << path << ": a case without -> (bless it)";
    EXPECT_EQ(got, trim(part.substr(arrow + 3))) << path << "\n" << part;
  }
  if (bless) std::ofstream(path) << blessed;
}

TEST(Golden, PassesGiveTheWrittenResults) {
  declare_writers();
  // __FILE__ is relative to the build folder, where ctest runs; by hand one starts from the root.
  std::filesystem::path root = std::filesystem::path(__FILE__).parent_path();
  if (!std::filesystem::exists(root)) root = "src/graph";
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root))
    if (entry.path().extension() == ".ir") {
      run_file(entry.path());
      ++files;
    }
  EXPECT_GT(files, 0);
}

}  // namespace
}  // namespace flashover::graph
