// Quotients that are whole whatever the sizes are.
#pragma once
#include <optional>

#include "sym/sym.h"

namespace flashover::sym {

struct Division {
  Expr quotient = 0, rest = 0;
};
// a = quotient * b + rest as polynomials, of sums whose highest terms divide. nullopt: nothing divides.
std::optional<Division> divide_by_sum(Expr a, Expr b);
// q where a is q times b as polynomials; nullopt: there is none. (b is not 0: who divides has asked.)
std::optional<Expr> whole_quotient(Expr a, Expr b);
// a // b in the simplest words: that q, or a quotient rounded down.
Expr quotient(Expr a, Expr b);
// The same in the words of what is known of sizes where this is asked (AskScope). In a trace, sizes in b that have the
// number of a size in a, in this call, are asked to be that size where that makes the quotient whole: of
// x.view(batch_of_y, -1) for an x and a y of one batch.
Expr known_quotient(Expr a, Expr b);

}  // namespace flashover::sym
