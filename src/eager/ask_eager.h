// Fills graph/eager_rules.h.
#pragma once

namespace flashover::aten {

void ask_eager();

}  // namespace flashover::aten
