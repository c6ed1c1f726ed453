// What the passes over attention on the CPU share: which shapes the hand-written operator (cpu_kernels/attention.h) is for,
// and how its results lie in memory.
#pragma once
#include "graph/rewrite/match.h"
#include "target/providers.h"

namespace flashover::graph {

bool on_cpu(const TensorType& t);      // and of constant size
bool dense_last(const TensorType& t);  // the last dimension's elements lie side by side

// Sizes are counts of rows of the query, rows of the key, and elements of a row of query and value.
bool suits_attention(const target::Providers& p, DType dtype, int64_t queries, int64_t keys, int64_t width,
                     int64_t value_width);

// Like `type` with another width. Heads lie between rows and width, as the operators write them.
TensorType heads_inside(TensorType type, sym::Expr width);

}  // namespace flashover::graph
