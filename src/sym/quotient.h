// Quotients that are whole whatever the sizes are.
#pragma once
#include <optional>

#include "sym/sym.h"

namespace flashover::sym {

// q where a is q times b; nullopt: none is found. (b is not 0: who divides has asked.)
std::optional<Expr> whole_quotient(Expr a, Expr b);

}  // namespace flashover::sym
