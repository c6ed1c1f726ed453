// A factor that is left out, or a number that is tried: what the quotient is at some sizes.
#include "sym/quotient.h"

#include <algorithm>

namespace flashover::sym {
namespace {

constexpr int64_t kSomeSize = 1009;

}  // namespace

std::optional<Expr> whole_quotient(Expr a, Expr b) {
  if (a == b) return Expr(1);
  if (a.kind() == Kind::kMul) {
    const auto factors = a.operands();
    if (const auto at = std::ranges::find(factors, b); at != factors.end()) {
      Expr rest = 1;
      for (auto f = factors.begin(); f != factors.end(); ++f)
        if (f != at) rest = rest * *f;
      return rest;
    }
  }
  const auto size = [](Expr) { return kSomeSize; };
  const int64_t x = evaluate(a, size), y = evaluate(b, size);
  if (y == 0 || x % y != 0 || !(Expr(x / y) * b == a)) return std::nullopt;
  return Expr(x / y);
}

}  // namespace flashover::sym
