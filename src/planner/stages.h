// Each stage from a core graph to a schedule alone, from text to text: for text tests (src/loops/test, src/planner/test)
// and tools/opt.py.
//
//   expand                    core graph -> core graph
//   make_loop_nodes, fuse, build   core graph -> nodes; groups; the groups' kernels
//   build_plan                core graph -> schedule
//   a rewrite (rewrites.h)    schedule -> schedule
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "planner/planner.h"

namespace flashover::planner {

std::vector<std::string> stage_names();  // in their order
// The plan's device is the graph's. Throws UserError for another name, or text that it cannot read.
std::string run_stage(std::string_view name, std::string_view text, Options options = {});

}  // namespace flashover::planner
