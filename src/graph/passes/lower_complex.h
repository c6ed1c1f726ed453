// Prims know no complex numbers: views, copies and constants of complex values that functionalize wrote as prims become
// the ATen operators again (externs).
#pragma once
#include "graph/graph.h"

namespace flashover::graph {

Graph lower_complex(Graph core);

}  // namespace flashover::graph
