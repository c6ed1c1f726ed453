// What makes the scores of a flex_attention (ops/flex.cpp), as a graph of its own: the function that its kernel computes
// point by point.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "graph/rewrite/rewriter.h"

namespace flashover::graph {

struct ScoreFunction {
  std::vector<const Node*> products;  // op::flex_scores nodes: the first inputs of the graph
  std::vector<ValueId> captured;      // its other inputs
  // Of a graph of these inputs, and one or two results of the sizes of `score`.
  std::string text;
};
// `mask`: kNoValue where all keys are seen. nullopt: a score depends on other products than those at its own place, or
// there is too much to compute for each of them.
std::optional<ScoreFunction> score_function(Rewriter& r, ValueId score, ValueId mask);

}  // namespace flashover::graph
