// From which size on something that is computed of it is two or more.
//
//   In        an expression of one symbol
//   Out       the sizes at which it becomes zero, one, or more; behind the last of them it is always more
//   Promises  exact: expressions of sums, quotients and remainders by numbers repeat, but for a slope
//   Declines  nullopt: expressions of another form, that never get there, or that change too often on the way
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "sym/sym.h"

namespace flashover::sym {

// Ascending, from `least` on; empty: it is more for all of them.
std::optional<std::vector<int64_t>> rises_of(Expr e, Expr symbol, int64_t least);

}  // namespace flashover::sym
