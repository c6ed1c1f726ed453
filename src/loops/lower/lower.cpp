// Gathers the rows of the families into one table.
#include "loops/lower/lower.h"

#include <array>

namespace flashover::loops {

Lowering find_lowering(Prim prim) {
  static const auto table = [] {
    std::vector<LoweringRow> rows;
    add_pointwise(rows);
    add_views(rows);
    add_movement(rows);
    add_windows(rows);
    std::array<Lowering, kPrims + 1> by_prim{};
    for (const LoweringRow& r : rows) by_prim[static_cast<size_t>(r.prim)] = r.lower;
    return by_prim;
  }();
  return table[static_cast<size_t>(prim)];
}

}  // namespace flashover::loops
