// What is known of a number without its value: rand() lies in [0, 1). So `if torch.rand([]) < layerdrop` is no branch
// on data while layerdrop is 0.
#pragma once
#include <optional>

#include "graph/graph.h"

namespace flashover::trace {

// The truth of a comparison that the traced graph computes; nullopt: it depends on the values.
std::optional<bool> known_truth(const graph::Graph& g, ValueId comparison);

}  // namespace flashover::trace
