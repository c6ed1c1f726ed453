// What is known of numbers without their values: rand() lies in [0, 1), so `if torch.rand([]) < layerdrop` is no branch
// on data while layerdrop is 0; nor is `if (mask > 1).any()` for a mask that was filled with ones, of whatever size.
#pragma once
#include <optional>

#include "graph/graph.h"

namespace flashover::trace {

// The truth of all elements of what the traced graph computes; nullopt: it depends on the values.
std::optional<bool> known_truth(const graph::Graph& g, ValueId value);

}  // namespace flashover::trace
