// Simplifies a core graph: values that follow from the program alone and are the same everywhere become prim.full,
// arithmetic that changes nothing goes (exactly: NaN, infinities and the sign of zero included), chains of views and
// conversions become one. Attention masks that are all-true or causal for every call become no mask or is_causal. After
// decompose, where everything is a prim; before relax_layout.
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

struct FoldOptions {
  bool strict_numerics = false;  // keep roundings through a narrower float (f32 -> bf16 -> f32)
};
Graph fold(Graph g, const FoldOptions& options = {});

}  // namespace flashover::graph
