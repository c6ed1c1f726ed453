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

}  // namespace flashover::sym
