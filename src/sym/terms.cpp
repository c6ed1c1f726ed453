// By the coefficients, which stand first in products.
#include "sym/terms.h"

#include <cstdlib>
#include <numeric>

namespace flashover::sym {

int64_t content(Expr e) {
  const auto of_term = [](Expr t) {
    if (t.is_const()) return std::abs(t.value());
    return t.kind() == Kind::kMul && t.operands()[0].is_const() ? std::abs(t.operands()[0].value()) : int64_t{1};
  };
  if (e.kind() != Kind::kAdd) return of_term(e);
  int64_t out = 0;
  for (Expr t : e.operands()) out = std::gcd(out, of_term(t));
  return out;
}

Expr without_content(Expr e) {
  const int64_t by = content(e);
  if (by <= 1) return e;
  Expr out = 0;
  for (Expr t : e.kind() == Kind::kAdd ? e.operands() : std::span<const Expr>(&e, 1)) {
    Expr rest = 1;
    if (!t.is_const())
      for (Expr factor : t.operands().subspan(1)) rest *= factor;
    out += Expr((t.is_const() ? t : t.operands()[0]).value() / by) * rest;
  }
  return out;
}

}  // namespace flashover::sym
