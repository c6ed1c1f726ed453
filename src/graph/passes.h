// Every pass of this stage by name, for the golden tests, FLASHOVER_DUMP and the curious.
#pragma once
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace flashover::graph {

struct Pass {
  const char* name;
  Graph (*run)(Graph);
  Form input, output;  // what it takes and promises; kFunctional passes take kCore as well
};
const std::vector<Pass>& passes();
const Pass* find_pass(std::string_view name);

}  // namespace flashover::graph
