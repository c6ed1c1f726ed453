// Sums, looked at by their terms.
#pragma once
#include "sym/sym.h"

namespace flashover::sym {

// What all terms of e are multiples of: 6 of 6*a - 12*b. 0 of 0.
int64_t content(Expr e);
// e in lowest terms: a - 2*b of 6*a - 12*b. It has e's sign.
Expr without_content(Expr e);

}  // namespace flashover::sym
