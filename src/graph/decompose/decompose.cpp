// Gathers the rows of the families into one table.
#include "graph/decompose/decompose.h"

#include <unordered_map>

#include "base/check.h"
#include "graph/decompose/rules.h"

namespace flashover::graph {
namespace {

using Table = std::unordered_map<const ops::OpRow*, Decomposition>;

Table make_table() {
  DecompositionRows rows;
  for (auto* add :
       {rules::add_pointwise, rules::add_copies, rules::add_views, rules::add_reductions, rules::add_norms,
        rules::add_indexing, rules::add_windows, rules::add_losses, rules::add_class_losses, rules::add_backward})
    add(rows);
  Table table;
  for (const DecompositionRow& row : rows) {
    const bool fresh = table.emplace(ops::find(row.op), row.build).second;
    FLASHOVER_CHECK(fresh) << "two decompositions of " << row.op;
  }
  return table;
}

}  // namespace

Decomposition find_decomposition(const ops::OpRow* op) {
  static const Table* table = new Table(make_table());
  auto it = table->find(op);
  return it == table->end() ? nullptr : it->second;
}

}  // namespace flashover::graph
