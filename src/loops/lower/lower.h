// How each prim computes one element of its result. Reductions, scans and scatters have no row here: they are not
// functions of one element and are scheduled as nodes of their own (schedule/).
#pragma once
#include <cstdint>
#include "loops/lower/emitter.h"

namespace flashover::loops {

// Element `at` of the node's (first) result.
using Lowering = Id (*)(Emitter& e, const graph::Node& node, const Index& at);
Lowering find_lowering(Prim prim);  // null: none

struct LoweringRow {
  Prim prim;
  Lowering lower;
};
void add_pointwise(std::vector<LoweringRow>& rows);
void add_views(std::vector<LoweringRow>& rows);
void add_movement(std::vector<LoweringRow>& rows);
void add_windows(std::vector<LoweringRow>& rows);

// Coordinates of the element number `flat` of a row-major array.
Index unflatten(sym::Expr flat, const Sizes& sizes);
sym::Expr flatten(const Index& at, const Sizes& strides);
// Coordinates in `from` of the element that has coordinates `at` in `to`: both row-major orders of the same elements.
Index reshape_index(const Index& at, const Sizes& to, const Sizes& from);
// Coordinates in x for result coordinates `at` of x[list] (prim.index).
Index advanced_index(Emitter& e, const TensorType& x, const RefList& list, const Index& at);
// Number of positions in the window of a pooling node.
int64_t window_size(const graph::Node& node);

}  // namespace flashover::loops
