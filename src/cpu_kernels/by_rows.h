// Operators whose results know nothing of how large the batch is (graph/passes/row_by_row.h): each number of a product is
// a sum in chunks of kInnerChunk, in order, by whatever kernel; images and entries of a batch are handed to ATen one by
// one, in one layout.
#pragma once
#include <torch/library.h>

namespace flashover::cpu {

void define_by_rows(torch::Library& library);

}  // namespace flashover::cpu
