// Marks the frozen part: nodes that depend on parameters, buffers and constants only are computed once, and again only
// when one of those changed (Node::frozen; the executor watches them). What is free or cheaper to recompute than to
// read stays in the running part: views of a parameter, factories, index arithmetic, broadcasts. So does what unpacks
// weights of 8 and 4 bits: whoever has such weights has them for the memory. Last pass.
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

Graph split_frozen(Graph g);

}  // namespace flashover::graph
