// Gathers the rows of the families into one table.
#include "loops/lower/lower.h"

#include <unordered_map>

namespace flashover::loops {

Lowering find_lowering(const ops::Op* op) {
  static const auto* const table = [] {
    std::vector<LoweringRow> rows;
    add_pointwise(rows);
    add_views(rows);
    add_movement(rows);
    add_windows(rows);
    auto* t = new std::unordered_map<const ops::Op*, Lowering>;
    for (const LoweringRow& r : rows) t->emplace(ops::find(std::string("prim.") + r.name), r.lower);
    return t;
  }();
  auto it = table->find(op);
  return it == table->end() ? nullptr : it->second;
}

}  // namespace flashover::loops
