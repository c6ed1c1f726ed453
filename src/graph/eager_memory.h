// What eager's memory would come to: the yardstick for a plan's.
#pragma once
#include <cstdint>

#include "graph/graph.h"

namespace flashover::graph {

// Of a graph in form kTraced: the most bytes on CUDA devices, beside the inputs, that are alive at one time where each
// tensor goes with its last use. (So it is no more than eager takes, where variables live on.) Autocast's copies of
// lasting inputs stay to the end. 0 where sizes are unknown.
int64_t eager_bytes(const Graph& traced);

}  // namespace flashover::graph
