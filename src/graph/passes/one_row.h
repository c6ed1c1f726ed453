// Products and attention of one row on CUDA devices, as a language model's step for one token has them, become sums:
// they read a matrix once and compute next to nothing, so that kernels that sum along its rows are as quick as the
// memory, take along what stands before and behind, and are launched with their neighbours (run/cuda).
//
//   In        mm, addmm and scaled_dot_product_attention whose result has one row
//   Out       prims: products, added up in f32 and rounded once, as the libraries do
//   Promises  a row of attention whose mask hides everything is zero, as ATen's
//   Declines  matrices that do not lie with the summed dim side by side; attention over more keys than kKeysOfOneRow, which
//             needs the keys split over more programs than there are heads
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

// After select_attention: masks that change nothing are gone then.
Graph one_row(Graph g);

}  // namespace flashover::graph
