#pragma once
#include <cstdint>

#include "graph/graph.h"

namespace flashover::loops {
// Rewrites prims that are more than one loop nest, or whose body would be too long, into simpler prims: var into two
// sums, large pooling windows into one window per dim, long reductions to few elements into two steps.
struct ExpandOptions {
  int threads = 2;
  int64_t split_numel = 1 << 16;
  int processors = 0;  // of a GPU, see ScheduleOptions
};
graph::Graph expand(const graph::Graph& core, const ExpandOptions& options = {});
}  // namespace flashover::loops
