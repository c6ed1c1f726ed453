// kFunctional -> kCore: every aten operator with a row in the decomposition table becomes prims; the rest stays extern.
// Results keep the types that eager gives them: where the natural strides of the rebuilt value differ, the producing
// prim takes eager's, or a prim.copy is put behind a view.
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

Graph decompose(Graph g);

}  // namespace flashover::graph
