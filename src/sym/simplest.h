// Guards in the simplest words that say the same.
#pragma once
#include <functional>
#include <vector>

#include "sym/environment.h"

namespace flashover::sym {

// Facts that together say what `fact` does, of parts of its expressions where they can: s0 >= 3 for
// 2 <= (s0 + 1) // 2, and s0 >= 1 for 6 < 6*s0*s1 where s1 is known to be 2 or more. least(e): a number that e is known
// to be nowhere less than, -Range::kInf where none is known. `fact` itself where nothing simpler is found.
std::vector<SizeGuard> simplest(const SizeGuard& fact, const std::function<int64_t(Expr)>& least);

}  // namespace flashover::sym
