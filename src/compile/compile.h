// The story: every stage and pass in order. Open pipeline.cpp first.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "plan/plan.h"

namespace flashover::compile {

struct Options {
  std::map<std::string, std::string> values;  // validated names, see options.def
};

struct Report {  // for explain() and FLASHOVER_LOGS
  struct Stage {
    std::string name;
    double seconds = 0;
  };
  std::vector<Stage> stages;
  int64_t kernels = 0, extern_calls = 0, bytes = 0;
  bool cache_hit = false;
  std::string graph_text, core_text, loops_text, plan_text;  // filled when asked
  std::vector<std::string> kernel_sources;
};

// Graph in form kTraced -> Plan, through the disk cache. Throws Declined / UserError / InternalError.
plan::Plan compile(graph::Graph traced, const Options& options, Report* report);

}  // namespace flashover::compile
