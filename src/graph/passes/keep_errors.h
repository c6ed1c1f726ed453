// Eager computes what nobody reads, and raises where an index is out of bounds or whole numbers are divided by zero.
//
//   In        a functional graph, before anything that nobody reads went
//   Out       the same, and flashover.computed behind operators that nobody reads and that may refuse what their operands
//             hold: it needs their results. So behind those of which a part is read, or the sizes alone
//   Promises  what the program computes on a CPU and that raises in eager raises
//   Declines  GPUs, where kernels tell nobody in time; what follows from a tangent: its indices are the forward's
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

Graph keep_errors(Graph g);

}  // namespace flashover::graph
