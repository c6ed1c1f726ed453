// An order between expressions is a bound of their difference: numbers and common factors are divided out of it, the
// bound of a quotient becomes one of what is divided, and the bound of a product one of its factors.
#include "sym/simplest.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "sym/terms.h"

namespace flashover::sym {
namespace {

using LeastOf = std::function<int64_t(Expr)>;

struct Monomial {
  int64_t coefficient = 1;
  std::vector<Expr> factors;  // no constants
};
Monomial monomial_of(Expr t) {
  if (t.is_const()) return {t.value(), {}};
  const auto factors = factors_of(t);
  const bool scaled = factors[0].is_const();
  return {scaled ? factors[0].value() : 1, {factors.begin() + (scaled ? 1 : 0), factors.end()}};
}

// e without what all of its terms have as a factor, is known to be positive and is no number.
Expr without_common_factors(Expr e, const LeastOf& least) {
  std::vector<Monomial> terms;
  for (Expr t : terms_of(e)) terms.push_back(monomial_of(t));
  std::vector<Expr> candidates = terms[0].factors;
  bool divided = false;
  for (Expr f : candidates) {
    const auto has = [&](const Monomial& t) { return std::ranges::find(t.factors, f) != t.factors.end(); };
    if (!std::ranges::all_of(terms, has) || least(f) < 1) continue;
    for (Monomial& t : terms) t.factors.erase(std::ranges::find(t.factors, f));
    divided = true;
  }
  if (!divided) return e;
  Expr out = 0;
  for (const Monomial& t : terms) out += Expr(t.coefficient) * product(t.factors);
  return out;
}

// scale * e + rest, where no number but 1 divides e, which has no constant term; scale > 0.
struct PrimitivePart {
  int64_t scale = 1;
  Expr e;
  int64_t rest = 0;
};
std::optional<PrimitivePart> primitive_part(Expr sum) {
  const int64_t rest = terms_of(sum).back().as_const().value_or(0);
  const Expr e = sum - Expr(rest);
  if (e.is_const()) return std::nullopt;
  const int64_t scale = content(e);
  return PrimitivePart{scale, floordiv(e, Expr(scale)), rest};
}

// number <= e, or (`upper`) e <= number, in simpler words.
void bound(Expr e, int64_t number, bool upper, const LeastOf& least, std::vector<SizeGuard>& out) {
  const auto parts = e.operands();
  constexpr int64_t kLarge = int64_t{1} << 40;  // (nothing overflows below)
  if (e.kind() == Kind::kFloorDiv && parts[1].is_const() && parts[1].value() > 0 && parts[1].value() < (1 << 20) &&
      std::abs(number) < kLarge) {
    const int64_t by = parts[1].value();
    return bound(parts[0], number * by + (upper ? by - 1 : 0), upper, least, out);
  }
  if (e.kind() == Kind::kAdd || (e.kind() == Kind::kMul && parts[0].is_const())) {
    const std::optional<PrimitivePart> s = primitive_part(e);
    if (s && (s->scale > 1 || s->rest != 0) && std::abs(number) < kLarge && std::abs(s->rest) < kLarge) {
      const Expr room = Expr(number - s->rest);
      const Expr limit = upper ? floordiv(room, Expr(s->scale)) : ceildiv(room, Expr(s->scale));
      return bound(s->e, limit.value(), upper, least, out);
    }
    if (terms_of(e).size() == 1 && monomial_of(e).coefficient == -1) return bound(-e, -number, !upper, least, out);
  }
  if (e.kind() == Kind::kMul && !upper && number >= 1) {  // a product of factors that are not negative
    int64_t without_zeros = 1;
    for (Expr f : parts) {
      const int64_t at_least = least(f);
      if (at_least < 0) without_zeros = 0;
      if (without_zeros < number) without_zeros *= std::clamp<int64_t>(at_least, 1, 1 << 20);
    }
    if (without_zeros >= number) {
      for (Expr f : parts)
        if (least(f) < 1) bound(f, 1, false, least, out);
      return;
    }
  }
  out.push_back(upper ? SizeGuard{Relation::kLessEqual, e, Expr(number)}
                      : SizeGuard{Relation::kLessEqual, Expr(number), e});
}

// 12 < 2*s0 stays as the program said it.
bool is_about_one_size(const SizeGuard& fact) {
  std::optional<Expr> size;
  const Expr difference = fact.b - fact.a;
  for (Expr t : terms_of(difference)) {
    if (t.is_const()) continue;
    const Monomial m = monomial_of(t);
    if (size || m.factors.size() != 1 || m.factors[0].kind() != Kind::kVar) return false;
    size = m.factors[0];
  }
  return true;
}

std::vector<SizeGuard> simplest_order(const SizeGuard& fact, const LeastOf& least) {
  const Expr difference = without_common_factors(fact.b - fact.a, least);
  const std::optional<PrimitivePart> s = primitive_part(difference);
  if (!s) return {fact};
  // scale * e + rest is at least 0, or 1.
  std::vector<SizeGuard> out;
  const int64_t wanted = fact.relation == Relation::kLess ? 1 : 0;
  bound(s->e, ceildiv(Expr(wanted - s->rest), Expr(s->scale)).value(), false, least, out);
  // A sum that is no less than a number is in order with its negative terms, as the program said.
  const auto mixed = [](const SizeGuard& g) { return (g.a.is_const() ? g.b : g.a).kind() == Kind::kAdd; };
  if (out.size() == 1 && mixed(out[0])) return {fact};
  return out;
}

std::vector<SizeGuard> simplest_difference(const SizeGuard& fact, const LeastOf& least) {
  const Expr difference = without_common_factors(fact.b - fact.a, least);
  const std::optional<PrimitivePart> s = primitive_part(difference);
  if (!s) return {fact};
  if (fact.relation == Relation::kNotEqual && s->rest == 0 && s->e.kind() == Kind::kMul) {
    std::vector<SizeGuard> out;
    for (Expr f : monomial_of(s->e).factors)
      out.push_back(least(f) >= 0 ? SizeGuard{Relation::kLessEqual, 1, f} : SizeGuard{Relation::kNotEqual, f, 0});
    return out;
  }
  const bool single = s->e.kind() != Kind::kAdd && s->rest % s->scale == 0;
  if (!single) return {fact};
  const bool negative = monomial_of(s->e).coefficient < 0;
  const Expr e = negative ? -s->e : s->e;
  const int64_t number = -s->rest / s->scale;
  return {{fact.relation, e, Expr(negative ? -number : number)}};
}

}  // namespace

std::vector<SizeGuard> simplest(const SizeGuard& fact, const LeastOf& least) {
  if (is_about_one_size(fact)) return {fact};
  const bool order = fact.relation == Relation::kLess || fact.relation == Relation::kLessEqual;
  return order ? simplest_order(fact, least) : simplest_difference(fact, least);
}

bool satisfied(Relation r, int64_t a, int64_t b) {
  switch (r) {
    case Relation::kEqual:
      return a == b;
    case Relation::kNotEqual:
      return a != b;
    case Relation::kLess:
      return a < b;
    case Relation::kLessEqual:
      return a <= b;
  }
  return false;
}

std::string str(const SizeGuard& g) {
  static constexpr const char* kSigns[] = {" == ", " != ", " < ", " <= "};
  return g.a.str() + kSigns[static_cast<size_t>(g.relation)] + g.b.str();
}

}  // namespace flashover::sym
