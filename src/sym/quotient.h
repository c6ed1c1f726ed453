// Quotients that are whole whatever the sizes are.
#pragma once
#include <optional>

#include "sym/sym.h"

namespace flashover::sym {

// q where a is q times b as polynomials; nullopt: there is none. (b is not 0: who divides has asked.)
std::optional<Expr> whole_quotient(Expr a, Expr b);
// In a trace: the whole quotient that there is once sizes in b that have the number of a size in a, in this call, are that
// size, which is asked for then: of x.view(batch_of_y, -1) for an x and a y of one batch. nullopt: nothing is asked.
std::optional<Expr> whole_quotient_of_equals(Expr a, Expr b);
// a // b in the simplest words: that q, or a quotient rounded down.
Expr quotient(Expr a, Expr b);

}  // namespace flashover::sym
