// kFunctional -> kCore: every aten operator with a row in the decomposition table becomes prims; the rest stays extern.
// Results keep the types that eager gives them: where the natural strides of the rebuilt value differ, the producing
// prim takes eager's, or a prim.copy is put behind a view.
#pragma once
#include "graph/graph.h"
#include "target/providers.h"

namespace flashover::graph {

// GPU: what its kernels cannot do stays ATen's, too: atomics that it does not have, stores that meet in no fixed order
// where the program asks for deterministic algorithms, numbers of kinds that Triton does not know.
Graph decompose(Graph g, const target::Providers& providers = {});

}  // namespace flashover::graph
