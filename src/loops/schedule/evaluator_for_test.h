// A plain evaluator of core graphs on row-major doubles, and one of plans through loops::interpret: the two sides of the
// scheduling tests. Nothing here shares code with lowering.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "loops/schedule/schedule.h"

namespace flashover::loops::testing {

struct Array {
  std::vector<int64_t> sizes;
  std::vector<double> data;  // row major, rounded to the dtype it stands for
};

// Values of all graph values. Inputs by position.
std::vector<Array> evaluate(const graph::Graph& g, const std::vector<Array>& inputs);

struct PlanResult {
  std::vector<Array> outputs;
  std::vector<Array> inputs_after;
  int32_t error = 0;
};
PlanResult run_plan(const Schedule& s, const std::vector<Array>& inputs);

}  // namespace flashover::loops::testing
