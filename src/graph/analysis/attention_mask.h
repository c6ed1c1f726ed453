// Classifies attention masks whose values follow from the program alone: masks made of indices (transformers builds
// such ones for models that never mask anything).
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

class Constants;

enum class Mask : uint8_t { kOther, kNone, kCausal };

// `mask`: a value of the core graph that `constants` looks at, over attention from rows of q to rows of k, both
// [batch, head, row, width].
Mask mask_of(const Graph& core, Constants& constants, ValueId mask, const TensorType& q, const TensorType& k);

// The same for a value of a graph that is still being traced.
Mask mask_of_traced(const Graph& traced, ValueId mask, const TensorType& q, const TensorType& k);

}  // namespace flashover::graph
