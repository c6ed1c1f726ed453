// Eager computes what nobody reads, and raises where an index is out of bounds or whole numbers are divided by zero.
//
//   In        a functional graph, before anything that nobody reads went
//   Out       the same, and behind the forward one flashover.computed that needs the results of operators that nobody
//             reads and that may refuse what their operands hold; so of those of which a part is read, or the sizes alone
//   Promises  what the program computes on a CPU and that raises in eager raises
//   Declines  GPUs, where kernels tell nobody in time; what follows from a tangent: its indices are the forward's; what
//             follows from no input; x[mask], which cannot be out of bounds
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

Graph keep_errors(Graph g);

}  // namespace flashover::graph
