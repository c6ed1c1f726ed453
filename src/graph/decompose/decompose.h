// The decomposition table: aten operator -> function that rebuilds it out of prims (see Decomposition in builder.h).
#pragma once
#include <vector>

#include "graph/builder.h"
#include "ops/names.h"

namespace flashover::graph {

struct DecompositionRow {
  const char* op;  // op::gelu
  Decomposition build;
};
// Null when the operator stays extern.
Decomposition find_decomposition(const ops::OpRow* op);

// One function per family file, called by decompose.cpp.
using DecompositionRows = std::vector<DecompositionRow>;

}  // namespace flashover::graph
