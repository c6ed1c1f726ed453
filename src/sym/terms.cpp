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
  int64_t out = 0;
  for (Expr t : terms_of(e)) out = std::gcd(out, of_term(t));
  return out;
}

Expr without_content(Expr e) {
  const int64_t by = content(e);
  return by <= 1 ? e : divided_by(e, by);
}

Expr divided_by(Expr e, int64_t by) {
  Expr out = 0;
  for (Expr t : terms_of(e)) {
    Expr rest = 1;
    if (!t.is_const())
      for (Expr factor : t.operands().subspan(1)) rest *= factor;
    out += Expr((t.is_const() ? t : t.operands()[0]).value() / by) * rest;
  }
  return out;
}

std::pair<int64_t, Expr> coefficient_and_rest(Expr t) {
  const bool scaled = t.kind() == Kind::kMul && t.operands().size() == 2 && t.operands()[0].is_const();
  return scaled ? std::pair(t.operands()[0].value(), t.operands()[1]) : std::pair(int64_t{1}, t);
}

}  // namespace flashover::sym
