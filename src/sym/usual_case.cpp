// The usual case of sizes that follow from data: how a question is answered that is not known for all of them, and that
// this is checked in each call.
#include <algorithm>
#include <utility>

#include "sym/environment.h"
#include "sym/found.h"

namespace flashover::sym {
namespace {

thread_local bool layout_only = false;

// A minimum or maximum of two, one of which follows from data.
std::optional<Expr> extremum_of_data(Expr e) {
  if (!has_data_size(e)) return std::nullopt;
  if ((e.kind() == Kind::kMin || e.kind() == Kind::kMax) && e.operands().size() == 2 &&
      has_data_size(e.operands()[0]) != has_data_size(e.operands()[1]))
    return e;
  for (Expr part : e.operands())
    if (const std::optional<Expr> found = extremum_of_data(part)) return found;
  return std::nullopt;
}

Expr with_part(Expr e, Expr part, Expr is) {
  return e == part ? is : substitute_parts(e, [&](Expr p) { return p == part ? std::optional(is) : std::nullopt; });
}

// 4 < 4*u says 1 < u.
void divide_by_coefficient(Relation r, Expr& a, Expr& b) {
  const auto coefficient_of = [](Expr e) {
    const bool product = e.kind() == Kind::kMul && e.operands().size() == 2 && e.operands()[0].is_const();
    return product && e.operands()[0].value() > 1 ? e.operands()[0].value() : 1;
  };
  if (a.is_const() == b.is_const() || (r != Relation::kLess && r != Relation::kLessEqual)) return;
  Expr& constant = a.is_const() ? a : b;
  Expr& other = a.is_const() ? b : a;
  const int64_t by = coefficient_of(other);
  if (by == 1) return;
  const bool rounds_up = (r == Relation::kLess) == b.is_const();
  constant = rounds_up ? ceildiv(constant, Expr(by)) : floordiv(constant, Expr(by));
  other = other.operands()[1];
}

}  // namespace

// Rules ask for what operators need, first: sizes that are equal, and in order. One element or none is the special case.
bool Environment::holds_usually(Relation r, Expr a, Expr b) {
  // Of x[:n] there are n rows, mostly, and not all of x.
  const bool of_equality = r == Relation::kEqual || r == Relation::kNotEqual;
  if (const std::optional<Expr> part = of_equality ? extremum_of_data(a - b) : std::nullopt) {
    const Expr x = part->operands()[0], y = part->operands()[1];
    const Expr less = has_data_size(x) ? x : y, more = less == x ? y : x;
    const bool is_min = part->kind() == Kind::kMin;
    if ((a == *part || b == *part) && (a == *part ? b : a) == (is_min ? more : less))
      return holds(Relation::kLess, less, more) == (r == Relation::kNotEqual);
    if (!a.is_const() && !b.is_const()) {
      const Expr is = holds(Relation::kLessEqual, less, more) == is_min ? less : more;
      return holds(r, with_part(a, *part, is), with_part(b, *part, is));
    }
  }
  divide_by_coefficient(r, a, b);
  const auto is_below = [](Expr e, int64_t n) { return e.is_const() && e.value() < n; };
  const bool divides = (a.is_const(0) && b.kind() == Kind::kMod) || (b.is_const(0) && a.kind() == Kind::kMod);
  const bool special = !divides && (is_below(a, 2) || is_below(b, 2));
  const bool answer = r == Relation::kEqual       ? !special
                      : r == Relation::kNotEqual  ? special
                      : r == Relation::kLessEqual ? !is_below(b, 2)
                                                  : !is_below(b, 3);
  // Where few elements lie is of no consequence.
  if (layout_only && (is_below(a, 3) || is_below(b, 3))) return answer;
  const std::optional<int64_t> x = found_in_call(a), y = x ? found_in_call(b) : std::nullopt;
  if (!y && r == Relation::kEqual && answer && cannot_be(a - b)) return expect(r, a, b, false);
  return expect(r, a, b, y ? satisfied(r, *x, *y) : answer);
}

// difference == 0 goes against what is known of a size that follows from data: no more than 5 of 5 elements are found,
// so not as many as there are in a list of 8.
bool Environment::cannot_be(Expr difference) const {
  for (int k = 0; k < data_sizes_; ++k) {
    const Expr symbol = data_size_symbol(k);
    const std::optional<Expr> by = coefficient(difference, symbol);
    if (!by || !(by->is_const(1) || by->is_const(-1))) continue;
    const Expr stands_for = by->is_const(1) ? symbol - difference : symbol + difference;
    if (has_data_size(stands_for)) continue;
    const auto with = [&](Expr e) {
      return substitute(canonical(e), [&](Expr v) { return v == symbol ? std::optional(stands_for) : std::nullopt; });
    };
    for (const auto& [guard, where] : guards_) {
      const Expr a = with(guard.a), b = with(guard.b);
      if (!has_data_size(a) && !has_data_size(b) && !satisfied(guard.relation, now(a), now(b))) return true;
    }
  }
  return false;
}

bool Environment::expect(Relation r, Expr a, Expr b, bool answer) {
  const SizeGuard asked{r, canonical(a), canonical(b)};
  const std::string line = here();
  const auto words = [&](const SizeGuard& fact) { return str(fact) + (line.empty() ? "" : " (" + line + ")"); };
  SizeGuard fact = answer ? asked : negated(asked);
  if (refuted.contains(words(fact))) {
    answer = !answer;
    fact = negated(fact);
  }
  if (assume) assume(fact, words(fact));
  if (fact.relation != Relation::kEqual || !solve(fact.a - fact.b)) guards_.push_back({fact, line});
  find_order(fact);
  return answer;
}

std::optional<bool> Environment::known_of_data(Relation r, Expr a, Expr b) const {
  const Expr left = canonical(a), right = canonical(b);
  const std::optional<bool> answer = known(r, left, right);
  if (answer)
    for (Expr side : {left, right}) {
      std::vector<Expr> symbols;
      collect_vars(side, symbols);
      for (Expr s : symbols)
        if (has_data_size(s) && std::ranges::find(relied_on_, s) == relied_on_.end()) relied_on_.push_back(s);
    }
  return answer;
}

bool Environment::usual(Relation r, Expr a, Expr b) {
  if (r == Relation::kEqual || r == Relation::kNotEqual) return r == Relation::kNotEqual;
  return has_data_size(a) || !has_data_size(b);
}

LayoutScope::LayoutScope() : before_(std::exchange(layout_only, true)) {}
LayoutScope::~LayoutScope() { layout_only = before_; }

}  // namespace flashover::sym
