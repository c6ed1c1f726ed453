// A sum of products, as the gradient of a weight that is used again and again (a loop over time steps, tied layers):
//
//   small ones, whose operands are smaller than the result, are one over their operands side by side:
//   sum A_i B_i = [A_1 A_2 ...] [B_1; B_2; ...];
//   on the CPU each product starts from the sum so far (and operands are laid side by side as far as they take half of
//   the result's memory): one result waits, as in eager, not all of them for one addition at the end.
//
// Gradients of a table, of which each is as large as the table, likewise: one over all indices.
//
// In an autocast region the products are 16-bit numbers, widened before they are added: then their sum is rounded once,
// or not at all.
//
// (Not where some of the operands may stand for gradients that did not come: zero times infinity.)
#pragma once
#include "graph/graph.h"
#include "target/providers.h"

namespace flashover::graph {

Graph merge_products(Graph core, const target::Providers& providers);

}  // namespace flashover::graph
