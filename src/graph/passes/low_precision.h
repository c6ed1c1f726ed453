// Products of few rows with a matrix that is unpacked from fewer bytes, as weights of 8 and 4 bits are: sums that read the
// packed matrix once and unpack it where it is read. A library's product would have it written to memory unpacked, in
// each call.
//
//   In        mm and addmm of one to four rows (most_rows), the matrix computed from one of 8-bit elements by prims
//   Out       prims: products, added up in f32 and rounded once, as the libraries do
//   Declines  unpacked matrices that do not lie with the summed dim side by side; rows that are symbols
#pragma once
#include "graph/graph.h"
#include "graph/rewrite/rewriter.h"
#include "target/providers.h"

namespace flashover::graph {

// After one_row: a GPU's products of one row are sums already.
Graph low_precision(Graph g, const target::Providers& providers);

// Whether low_precision takes x [rows, inner] times matrix [inner, columns]: also before decompose, so that no pass there
// gives the product to a library.
bool is_low_precision(Rewriter& r, ValueId x, ValueId matrix, const target::Providers& providers);

}  // namespace flashover::graph
