// Option batch_invariant, on the CPU: operators whose libraries choose by the number of rows become ones that do not. A
// row of a product is a sum in one order whatever lies beside it (flashover.row_product, panel_linear); convolutions are
// computed image by image, attention entry by entry of the batch. 16-bit floats are computed with in f32 and rounded once.
//
// What remains an operator of ATen's and is not known to be so is said by certify_numerics (analysis/numerics.h).
#pragma once
#include "graph/graph.h"
#include "target/providers.h"

namespace flashover::graph {

Graph row_by_row(Graph g, const target::Providers& providers);

}  // namespace flashover::graph
