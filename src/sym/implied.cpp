// An order is implied where its difference is no less than the fact's, by itself or as often as some number or size
// says.
#include "sym/implied.h"

#include <algorithm>
#include <utility>

#include "sym/samples.h"
#include "sym/terms.h"

namespace flashover::sym {
namespace {

constexpr int64_t kMostTimes = 1 << 20;

AtLeastZero at_least_zero(Expr e) { return {e, content(e)}; }

bool is_factor_of(Expr term, Expr size) {
  if (term.kind() != Kind::kMul) return false;
  const auto factors = term.operands().subspan(term.operands()[0].is_const() ? 1 : 0);
  return factors.size() > 1 && std::ranges::find(factors, size) != factors.end();
}

// Some term of e has the size and something else that is no number as factors.
bool is_factor_within(Expr e, Expr size) {
  return e.kind() == Kind::kAdd ? std::ranges::any_of(e.operands(), [&](Expr term) { return is_factor_of(term, size); })
                                : is_factor_of(e, size);
}

bool mentions_all_of(Expr other, Expr e) {
  std::vector<Expr> needed, there;
  collect_vars(e, needed);
  collect_vars(other, there);
  return std::ranges::all_of(needed, [&](Expr v) { return std::ranges::find(there, v) != there.end(); });
}

bool is_order(Relation r) { return r == Relation::kLess || r == Relation::kLessEqual; }

}  // namespace

PreparedFact::PreparedFact(SizeGuard fact)
    : guard_(std::move(fact)), difference_(without_content(guard_.a - guard_.b)) {
  if (is_order(guard_.relation)) given_ = {at_least_zero(-difference_ - Expr(guard_.relation == Relation::kLess))};
  if (guard_.relation == Relation::kEqual) given_ = {at_least_zero(-difference_), at_least_zero(difference_)};
}

Question::Question(Relation r, Expr difference) : relation_(r), difference_(without_content(difference)) {}

Question::Wanted::Wanted(Expr e) : sum(at_least_zero(e)) {
  std::vector<Expr> sizes;
  collect_vars(e, sizes);
  for (Expr s : sizes) {
    const auto times = coefficient(e, s);
    const auto number = times ? times->as_const() : std::nullopt;
    factors.push_back({s, number, s.range().lo >= 0 && is_factor_within(e, s)});
  }
}

Question::Wanted& Question::wanted(bool strict, bool exchanged) {
  std::optional<Wanted>& w = wanted_[(strict ? 2 : 0) + (exchanged ? 1 : 0)];
  if (!w) w.emplace((exchanged ? difference_ : -difference_) - Expr(strict ? 1 : 0));
  return *w;
}

// By itself, or as often as makes its terms those wanted.
bool Question::says(const AtLeastZero& given, const Wanted& wanted) {
  if (quickly_proven_le(given.e, wanted.sum.e)) return true;
  const int64_t times = given.content > 0 ? wanted.sum.content / given.content : 0;
  return times > 1 && times < kMostTimes && !somewhere_above(given.e, wanted.sum.e, times) &&
         quickly_proven_le(given.e * Expr(times), wanted.sum.e);
}

bool Question::implies(const AtLeastZero& given, const Wanted& wanted) {
  // What is said of other sizes alone proves nothing that is not so by itself.
  if (!may_share_variables(given.e, wanted.sum.e)) return false;
  if (says(given, wanted)) return true;
  // 4*u <= 80 is 4 times u <= 20.
  const auto by_a_number = [&](const Factor& f) {
    if (!f.number) return false;
    const auto g = coefficient(given.e, f.size);
    if (!g || !g->is_const() || g->value() == 0 || *f.number % g->value() != 0) return false;
    const int64_t times = *f.number / g->value();
    return times > 1 && !somewhere_above(given.e, wanted.sum.e, times) &&
           quickly_proven_le(given.e * Expr(times), wanted.sum.e);
  };
  return std::ranges::any_of(wanted.factors, [&](const Factor& f) {
    return by_a_number(f) || (f.of_a_product && says(at_least_zero(given.e * f.size), wanted));
  });
}

// Whether the fact proves a < b (or a <= b, or these with their sides exchanged) of the question's sides.
bool Question::follows(const PreparedFact& fact, bool strict, bool exchanged) {
  return is_order(fact.guard_.relation) && implies(fact.given_[0], wanted(strict, exchanged));
}

// An equality is two facts of an order.
std::optional<bool> Question::by_equality(const PreparedFact& fact) {
  if (!mentions_all_of(difference_, fact.difference_)) return std::nullopt;
  const auto either = [&](bool exchanged) {
    const Wanted& w = wanted(false, exchanged);
    return std::ranges::any_of(fact.given_, [&](const AtLeastZero& given) { return implies(given, w); });
  };
  const bool at_most = either(false), at_least = either(true);
  if (relation_ == Relation::kLessEqual && at_most) return true;
  if (relation_ == Relation::kLess && at_least) return false;
  if (at_most && at_least && !is_order(relation_)) return relation_ == Relation::kEqual;
  return std::nullopt;
}

std::optional<bool> Question::answer_by(const PreparedFact& fact) {
  const Relation given = fact.guard_.relation;
  if (given == Relation::kEqual)
    if (const auto answer = by_equality(fact)) return answer;
  switch (relation_) {
    case Relation::kEqual:
    case Relation::kNotEqual:
      if (!is_order(given) && (fact.difference_ == difference_ || fact.difference_ == -difference_))
        return given == relation_;
      if (follows(fact, true, false) || follows(fact, true, true)) return relation_ == Relation::kNotEqual;
      return std::nullopt;
    case Relation::kLess:
      if (follows(fact, true, false)) return true;
      if (follows(fact, false, true)) return false;
      return std::nullopt;
    case Relation::kLessEqual:
      if (follows(fact, false, false)) return true;
      if (follows(fact, true, true)) return false;
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace flashover::sym
