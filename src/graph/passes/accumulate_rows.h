// Gradients of a table that are parts of a sum (the table is read several times, or is a language model's last weight
// too) are no tables themselves: their rows are added to the sum of everything else, in its memory if nothing else
// reads it (Planner::write_over_operands). f32 on the CPU.
//
// Before merge_products, which makes one of several tables: here there is none.
#pragma once
#include "graph/graph.h"
#include "target/providers.h"

namespace flashover::graph {

Graph accumulate_rows(Graph core, const target::Providers& providers);

}  // namespace flashover::graph
