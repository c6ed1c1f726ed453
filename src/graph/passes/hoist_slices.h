// A slice of rows moves up through all that works row by row: the last block of a transformer computes the row that is
// read, `h[:, 0]` of a classifier or `logits[:, -1]` of a language model, and not those that are not.
//
// It passes products (rows of the left factor), pointwise operators, norms and softmax over other dims, views and
// attention (its queries), as long as nothing reads the rows that go. Slices that keep more than half of the rows stay
// where they are, as do those with no product above them: kernels compute what is read of pointwise work anyway.
// Products of fewer rows round otherwise, so not with `strict_numerics`. Before the passes that choose libraries by size.
#pragma once
#include "graph/graph.h"
#include "target/providers.h"

namespace flashover::graph {

Graph hoist_slices(Graph g, const target::Providers& providers);

}  // namespace flashover::graph
