// Quotients that are whole whatever the sizes are.
#pragma once
#include <optional>

#include "sym/sym.h"

namespace flashover::sym {

// q where a is q times b as polynomials; nullopt: there is none. (b is not 0: who divides has asked.)
std::optional<Expr> whole_quotient(Expr a, Expr b);
// a // b in the simplest words: that q, or a quotient rounded down.
Expr quotient(Expr a, Expr b);

}  // namespace flashover::sym
