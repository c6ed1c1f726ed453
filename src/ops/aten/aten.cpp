// The aten rows, family by family. Each family file adds its rows to the table here.
#include "ops/aten/table.h"

namespace flashover::ops {

void register_aten(std::vector<Row>& rows) {
  aten::Table table(rows);
  for (auto* add : {aten::add_pointwise, aten::add_factories, aten::add_copies, aten::add_views, aten::add_reductions,
                    aten::add_matmuls, aten::add_norms, aten::add_windows, aten::add_indexing, aten::add_attention,
                    aten::add_random, aten::add_losses, aten::add_backward, aten::add_rare})
    add(table);
}

}  // namespace flashover::ops
