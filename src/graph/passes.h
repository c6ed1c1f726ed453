// Every pass of this stage by name, for the golden tests, FLASHOVER_DUMP and the curious.
#pragma once
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/providers.h"

namespace flashover::graph {

struct Pass {
  const char* name;
  Graph (*run_on)(Graph, const Providers&);
  Form input, output;  // what it takes and promises; kFunctional passes take kCore as well
  Providers machine;   // the one that its tests are written for
  Graph run(Graph g) const { return run_on(std::move(g), machine); }
};
const std::vector<Pass>& passes();
const Pass* find_pass(std::string_view name);
// What both machines have.
Providers common(Providers a, const Providers& b);

}  // namespace flashover::graph
