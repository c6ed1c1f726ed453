// Variables below an expression: loops over a size that is a symbol.
#pragma once
#include "sym/sym.h"

namespace flashover::sym {

// A variable in [0, extent). Asking again with the same name returns the same node (extents must agree).
Expr var_below(std::string_view name, Expr extent);
// Of a variable whose range begins at 0: one more than its largest value.
Expr extent_of(Expr variable);
// An expression without variables below sizes that e is nowhere less than: e itself where there are none. nullopt: none
// was found. Whoever replaces sizes in e by other sizes has to ask for it first: bounds of such variables stay as they
// are.
std::optional<Expr> least_over_loops(Expr e);

}  // namespace flashover::sym
