// Matrix products with a weight that is known before the call become the linear operator of the library that is fastest
// here (Providers), the weight packed in the frozen part; activations that the library computes on the fly are taken
// along. Products of training, whose operands change with every step, become ours too where they are large enough to be
// packed at each call (flashover.product). Before decompose: activations are still whole there.
#pragma once
#include "graph/graph.h"
#include "target/providers.h"

namespace flashover::graph {

Graph linear(Graph g, const target::Providers& providers);

// Whether flashover.packed_linear is the one to compute rows x inner times inner x columns in f32, the weight frozen.
bool suits_bf16x3(const target::Providers& providers, DType dtype, int64_t rows, int64_t inner, int64_t columns);

// x [rows, inner] times weight [columns, inner], transposed (+ bias), by an operator of ours that gemm names (kOwnPacked,
// kOwnPanels), which packs the weight. type: the result's.
class Rewriter;
ValueId own_linear(Rewriter& r, target::Gemm gemm, ValueId x, ValueId weight, std::optional<ValueId> bias,
                   TensorType type);

}  // namespace flashover::graph
