// The text tests of src/loops and src/planner. `machine:` names fields of planner::Options.
#include "base/golden_for_test.h"

#include "planner/stages.h"

namespace flashover::planner {
namespace {

std::string run_all(const golden::Case& c) {
  std::string text = c.input + "\n";
  for (const std::string& name : c.names) text = run_stage(name, text, parse_options(c.machine));
  return text;
}

TEST(Golden, StagesGiveTheWrittenResults) {
  std::set<std::string> loops{"expand", "make_loop_nodes", "fuse", "build"}, planner;
  for (const std::string& name : stage_names())
    if (!loops.contains(name) && name != "fuse_products") planner.insert(name);  // measured: tests/cuda
  golden::check_folder("loops", run_all, loops);
  golden::check_folder("planner", run_all, planner);
}

}  // namespace
}  // namespace flashover::planner
