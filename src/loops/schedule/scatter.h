// Prims that store where data tells them to: scatter, index_put, as_strided_scatter. They run over a buffer that holds
// a copy of their first operand.
#pragma once
#include <vector>

#include "loops/lower/emitter.h"

namespace flashover::loops {

bool is_scatter(const ops::OpRow* op);
struct ScatterDomain {
  Sizes sizes;                // of the loops: one point per stored element
  std::vector<bool> ordered;  // points that differ in these dims may store to the same place
};
ScatterDomain scatter_domain(const graph::Graph& g, const graph::Node& node);
struct ScatterPoint {
  Id value = kNone;
  Index at;  // coordinates in the result
  StoreMode mode = StoreMode::kSet;
};
ScatterPoint emit_scatter(Emitter& e, const graph::Node& node, const Index& point);

}  // namespace flashover::loops
