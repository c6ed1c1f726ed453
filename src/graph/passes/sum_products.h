// A sum of small products, as the gradient of a weight that is used again and again (a loop over time steps, tied
// layers), is one product over their operands side by side: sum A_i B_i = [A_1 A_2 ...] [B_1; B_2; ...].
//
// In an autocast region the products are 16-bit numbers, widened before they are added: then their sum is rounded once.
//
// Done where the operands are smaller than the results, which then are never written. (Not where some of the operands
// may stand for gradients that did not come: zero times infinity.)
#pragma once
#include "graph/graph.h"
#include "graph/providers.h"

namespace flashover::graph {

Graph sum_products(Graph core, const Providers& providers);

}  // namespace flashover::graph
