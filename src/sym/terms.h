// Sums, looked at by their terms, and terms by their factors.
#pragma once
#include <utility>

#include "sym/sym.h"

namespace flashover::sym {

// What e is the sum of; itself where it is none. The expression has to outlive what is returned.
inline std::span<const Expr> terms_of(const Expr& e) {
  return e.kind() == Kind::kAdd ? e.operands() : std::span<const Expr>(&e, 1);
}
std::span<const Expr> terms_of(const Expr&& e) = delete;
// What a term is the product of, its coefficient first where it has one; itself where it is no product.
inline std::span<const Expr> factors_of(const Expr& e) {
  return e.kind() == Kind::kMul ? e.operands() : std::span<const Expr>(&e, 1);
}
std::span<const Expr> factors_of(const Expr&& e) = delete;

// What all terms of e are multiples of: 6 of 6*a - 12*b. 0 of 0.
int64_t content(Expr e);
// e in lowest terms: a - 2*b of 6*a - 12*b. It has e's sign.
Expr without_content(Expr e);
// By a number that divides content(e).
Expr divided_by(Expr e, int64_t by);

// 6 and a of 6*a; 1 and the term of others.
std::pair<int64_t, Expr> coefficient_and_rest(Expr term);

}  // namespace flashover::sym
