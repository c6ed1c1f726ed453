// The aten rows, family by family. Each family file adds its rows to the table here.
#include "ops/ops.h"

namespace flashover::ops {

void register_aten(std::vector<Row>& rows) { (void)rows; }

}  // namespace flashover::ops
