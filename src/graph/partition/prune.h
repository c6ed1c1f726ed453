// A backward when some tangents do not come: the results that they belong to were not used.
//
// Autograd's backward is linear in the tangents, so what depends on absent ones only is nothing at all: it is not
// computed, and adds nothing where it would be added. (Zeros in the place of absent tangents cost memory and work, and
// are wrong where a saved value is infinite.)
//
//   In        a backward graph of partition(), functional or core; which inputs are tangents, and which are absent
//   Out       the graph of what is left, which inputs and outputs of the whole graph those of the new one are, and which
//             inputs what is left out reads: a later run for the absent tangents needs those. An input may be there for
//             its sizes alone
//   Declined  where no input tells a size that is left in the graph
#pragma once
#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace flashover::graph {

struct Pruned {
  Graph graph{kNewProgram};
  std::vector<int32_t> inputs, outputs, left_out;
};
Pruned without_tangents(const Graph& backward, const std::vector<bool>& tangent, const std::vector<bool>& absent);

}  // namespace flashover::graph
