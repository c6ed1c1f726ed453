// Equalities are solved for a symbol where one stands alone in them; other answers are kept as guards.
#include "sym/environment.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "sym/bounded.h"
#include "sym/found.h"
#include "sym/implied.h"
#include "sym/quotient.h"
#include "sym/rises.h"
#include "sym/simplest.h"
#include "sym/terms.h"

namespace flashover::sym {

SizeGuard negated(const SizeGuard& g) {
  switch (g.relation) {
    case Relation::kEqual:
      return {Relation::kNotEqual, g.a, g.b};
    case Relation::kNotEqual:
      return {Relation::kEqual, g.a, g.b};
    case Relation::kLess:
      return {Relation::kLessEqual, g.b, g.a};
    case Relation::kLessEqual:
      return {Relation::kLess, g.b, g.a};
  }
  return g;
}

namespace {

std::optional<bool> proven(Relation r, Expr a, Expr b) {
  switch (r) {
    case Relation::kEqual:
      if (proven_eq(a, b)) return true;
      if (proven_ne(a, b)) return false;
      break;
    case Relation::kNotEqual:
      if (proven_ne(a, b)) return true;
      if (proven_eq(a, b)) return false;
      break;
    case Relation::kLess:
      if (proven_lt(a, b)) return true;
      if (proven_le(b, a)) return false;
      break;
    case Relation::kLessEqual:
      if (proven_le(a, b)) return true;
      if (proven_lt(b, a)) return false;
      break;
  }
  return std::nullopt;
}

// What stands in for a size that follows from data where torch wants some number to show.
constexpr int64_t kDataSizeShown = 1009;

// The ends of slices are often INT64_MAX, which nothing can be added to; no size comes near this number.
constexpr int64_t kFar = int64_t{1} << 60;
bool far_above(Expr e) { return e.is_const() && e.value() > kFar; }

thread_local Environment* asked = nullptr;
thread_local bool presuming = false;

// Numbers that sizes are known not to be below, or not above.
using Bounds = std::unordered_map<Expr, int64_t>;

// The size as a variable of these bounds. (A name has one range.)
Expr within(Expr size, int64_t least, const Bounds& most) {
  const auto known = most.find(size);
  if (known == most.end() || known->second < least) return size + Expr(least - size.range().lo);
  const std::string name = std::string(size.name()) + "[" + std::to_string(least) + "," + std::to_string(known->second);
  return var(name + "]", {least, known->second}, least);
}

// The same for symbols within what is known of them; with `steps` they are as large as they are presumed to be, too.
Expr with_bounds(Expr e, const Bounds& least, const Bounds& most, const Environment::Steps* steps = nullptr) {
  if (e.is_const() || (!steps && least.empty() && most.empty())) return e;
  return substitute(e, [&](Expr variable) -> std::optional<Expr> {
    const std::optional<int> symbol = size_symbol_index(variable);
    if (!symbol) return std::nullopt;
    const auto known = least.find(variable);
    int64_t from = known == least.end() ? kSizeSymbolRange.lo : known->second;
    if (steps && !has_data_size(variable)) {
      const auto step = steps->find(*symbol);
      from = std::max(from, step == steps->end() ? kLeastPresumed : *step->second.rbegin());
    }
    return within(variable, from, most);
  });
}

// How difference and 0 stand where sizes are replaced by larger ones. Loops over the sizes go first, since they are
// bounded by the sizes as they were.
std::optional<bool> proven_of_larger(Relation r, Expr difference, const std::function<Expr(Expr)>& larger) {
  const std::optional<Expr> least = least_over_loops(difference);
  if (least == difference) {
    const Expr e = larger(difference);
    return e == difference ? std::nullopt : proven(r, e, Expr(0));  // (the caller has asked without)
  }
  const std::optional<Expr> most = least_over_loops(-difference);
  const bool below = most && proven_lt(Expr(0), larger(*most)), above = least && proven_lt(Expr(0), larger(*least));
  if (r == Relation::kEqual || r == Relation::kNotEqual)
    return below || above ? std::optional(r == Relation::kNotEqual) : std::nullopt;
  if (below || (r == Relation::kLessEqual && most && proven_le(Expr(0), larger(*most)))) return true;
  if (above || (r == Relation::kLess && least && proven_le(Expr(0), larger(*least)))) return false;
  return std::nullopt;
}

bool contains(Expr e, Expr part) {
  return e == part || std::ranges::any_of(e.operands(), [&](Expr inner) { return contains(inner, part); });
}

Expr by_terms(Expr e, const std::function<Expr(Expr)>& f) {
  Expr out = 0;
  for (Expr t : terms_of(e)) out += f(t);
  return out;
}

// What e is nowhere less than: x mod y of a y that is positive is at most y - 1.
Expr least_without_remainders(Expr e, const std::function<bool(Expr)>& is_positive) {
  return by_terms(e, [&](Expr t) {
    const auto [times, part] = coefficient_and_rest(t);
    if (part.kind() != Kind::kMod || !is_positive(part.operands()[1])) return t;
    return times > 0 ? Expr(0) : Expr(times) * (part.operands()[1] - 1);
  });
}

// What e is nowhere less than: 8*((x + 7) // 8) is at least x.
Expr least_without_quotients(Expr e) {
  return by_terms(e, [](Expr t) {
    const auto [times, part] = coefficient_and_rest(t);
    if (part.kind() != Kind::kFloorDiv || !part.operands()[1].is_const()) return t;
    const Expr x = part.operands()[0];
    const int64_t by = part.operands()[1].value();
    if (by <= 0 || times % by != 0) return t;
    return Expr(times / by) * (times > 0 ? x - Expr(by - 1) : x);
  });
}

// By what rounding can take away at most.
std::optional<bool> proven_unrounded(Relation r, Expr difference, const std::function<Expr(Expr)>& larger) {
  const auto is_positive = [&](Expr e) { return larger(e).range().lo > 0; };
  const auto at_least = [&](Expr e, int64_t number) {
    if (!(least_over_loops(e) == e)) return false;
    const Expr less = least_without_remainders(e, is_positive), least = least_without_quotients(less);
    return (!(less == e) && proven_le(Expr(number), larger(less))) ||
           (!(least == less) && proven_le(Expr(number), larger(least)));
  };
  if (r == Relation::kEqual || r == Relation::kNotEqual) {
    const bool apart = at_least(difference, 1) || at_least(-difference, 1);
    return apart ? std::optional(r == Relation::kNotEqual) : std::nullopt;
  }
  const bool strict = r == Relation::kLess;
  if (at_least(-difference, strict ? 1 : 0)) return true;
  return at_least(difference, strict ? 0 : 1) ? std::optional(false) : std::nullopt;
}

bool proven_or_presumed(Relation r, Expr a, Expr b) {
  if (proven(r, a, b) == true) return true;
  const Environment::Steps none;
  const auto larger = [&none](Expr e) { return with_bounds(e, {}, {}, &none); };
  return presuming && !far_above(a) && !far_above(b) && proven_of_larger(r, a - b, larger) == true;
}

bool divides(Expr e) {
  return e.kind() == Kind::kFloorDiv || e.kind() == Kind::kMod || std::ranges::any_of(e.operands(), divides);
}

// x mod by.
struct Remainder {
  Expr x;
  int64_t by = 1;
};
std::optional<Remainder> remainder_of(Expr e) {
  if (e.kind() == Kind::kMul && e.operands().size() == 2 && e.operands()[0].is_const()) e = e.operands()[1];
  if (e.kind() != Kind::kMod || !e.operands()[1].is_const() || e.operands()[1].value() < 2) return std::nullopt;
  return Remainder{e.operands()[0], e.operands()[1].value()};
}
void collect_remainders(Expr e, std::vector<Remainder>& out) {
  if (const auto r = e.kind() == Kind::kMod ? remainder_of(e) : std::nullopt) out.push_back(*r);
  for (Expr part : e.operands()) collect_remainders(part, out);
}

// Sizes in terms of what they are so many times of, and what is left over: with these in their place, quotients and
// remainders are plain.
class Multiples {
 public:
  // zero: what leaves nothing. The largest divisors first: smaller ones of the same size say nothing more, mostly.
  Multiples(std::vector<Remainder> zero, std::vector<Remainder> left) {
    const auto larger = [](const Remainder& a, const Remainder& b) { return a.by > b.by; };
    std::ranges::stable_sort(zero, larger);
    std::ranges::stable_sort(left, larger);
    for (const Remainder& r : zero) add(r, true);
    for (const Remainder& r : left) add(r, false);
  }
  bool empty() const { return stands_for_.empty(); }
  Expr of(Expr e) const {
    return substitute(e, [this](Expr v) -> std::optional<Expr> {
      const auto known = stands_for_.find(v);
      return known == stands_for_.end() ? std::nullopt : std::optional(known->second);
    });
  }

 private:
  // r.x is v or -v and something else: v is so many times r.by, less (more) what is left, less (more) the rest.
  void add(const Remainder& r, bool zero) {
    const Expr x = of(r.x);
    std::vector<Expr> variables;
    collect_vars(x, variables);
    for (Expr v : variables) {
      const std::optional<Expr> by = coefficient(x, v);
      if (!by || !(by->is_const(1) || by->is_const(-1)) || !size_symbol_index(v)) continue;
      const int64_t sign = by->value();
      const Expr rest = Expr(sign) * x - v;  // v + rest is the multiple, and what is left
      std::vector<Expr> others;
      collect_vars(rest, others);
      if (std::find(others.begin(), others.end(), v) != others.end()) continue;
      // (A name has one range: it says what that depends on.)
      const std::string name = std::string(v.name()) + (sign > 0 ? "/" : "/-") + std::to_string(r.by);
      const auto offset = rest.as_const();
      const int64_t least = offset
                                ? floordiv(Expr(v.range().lo + *offset + (sign < 0 ? r.by - 1 : 0)), Expr(r.by)).value()
                                : -Range::kInf;
      const Expr times = var(name + (offset ? "+" + std::to_string(*offset) : "+?"), {least, Range::kInf}, least);
      const Expr left = zero ? Expr(0) : var("%" + name, {0, r.by - 1}, 0);
      const Expr stands_for = Expr(r.by) * times + Expr(sign) * left - rest;
      for (auto& [other, expression] : stands_for_)
        expression = substitute(expression, [&](Expr e) { return e == v ? std::optional(stands_for) : std::nullopt; });
      stands_for_.emplace(v, stands_for);
      return;
    }
  }

  std::unordered_map<Expr, Expr> stands_for_;
};

// Quotients by numbers in an expression.
void collect_quotients(Expr e, std::vector<Remainder>& out) {
  if (e.kind() == Kind::kFloorDiv && e.operands()[1].is_const() && e.operands()[1].value() > 1)
    out.push_back({e.operands()[0], e.operands()[1].value()});
  for (Expr part : e.operands()) collect_quotients(part, out);
}

}  // namespace

Environment Environment::assuming(std::vector<SizeGuard> facts, Steps steps) {
  Environment out;
  out.steps_ = std::move(steps);
  for (SizeGuard& fact : facts) {
    out.find_number(fact);
    out.find_order(fact);
    out.guards_.push_back({std::move(fact), ""});
  }
  out.assumes_ = true;
  return out;
}

Expr Environment::add(int64_t now, const Promise& promise) {
  FLASHOVER_CHECK(now >= kSizeSymbolRange.lo) << "a symbol for the size " << now;
  now_.push_back(now);
  promises_.push_back(promise);
  const Expr symbol = size_symbol(static_cast<int>(now_.size()) - 1);
  if (!promise.bounded || now < promise.least || now > promise.most) return symbol;
  const auto bound = [&](Expr a, Expr b) {
    guards_.insert(guards_.begin() + static_cast<std::ptrdiff_t>(bounds_++), {{Relation::kLessEqual, a, b}, ""});
  };
  if (promise.least > kSizeSymbolRange.lo) bound(promise.least, symbol);
  if (promise.most != Range::kInf) bound(symbol, promise.most);
  return symbol;
}

Expr Environment::add_data_size() {
  FLASHOVER_CHECK(data_sizes_ < kMaxSizeSymbols) << "sizes that follow from data";
  return data_size_symbol(data_sizes_++);
}

void Environment::know(SizeGuard fact) { guards_.push_back({std::move(fact), ""}); }

// Kept as long as the guards stay these, since questions come again and again. An answer stays; that none was found is
// looked at again by what was learned since.
struct Environment::Learned {
  size_t guards = 0, solved = 0, bounds = 0;  // so many there were
  size_t changes = 0;                         // of what is looked at as a whole, and not fact by fact
  std::vector<PreparedFact> facts, presumed;  // the guards, canonical; and of sizes that are presumed to be larger
  std::vector<PreparedFact> opened;           // what is presumed itself
  Bounds least, most;                         // that they leave of sizes
  std::unordered_map<Expr, Expr> canonical;
  std::optional<std::vector<AskedGuard>> simplest[2];  // canonical_guards()

  struct Asked {
    Relation relation;
    Expr difference;
    bool presuming;
    bool operator==(const Asked&) const = default;
  };
  struct AskedHash {
    size_t operator()(const Asked& q) const {
      return std::hash<Expr>()(q.difference) * 8 + static_cast<size_t>(q.relation) * 2 + (q.presuming ? 1 : 0);
    }
  };
  struct Answer {
    std::optional<bool> is;
    size_t facts = 0, changes = 0;  // there were so many
  };
  std::unordered_map<Asked, Answer, AskedHash> answers;

  // By quotients and the like: a guard says that they are a part of something simpler, 7*((s0 + 6) // 7) == s0.
  struct Fraction {
    int64_t by;
    Expr of;
  };
  std::unordered_map<Expr, Fraction> fractions;
  std::optional<Expr> without_fractions(Expr product_of_parts) const;

  // By what guards say is divisible, 32 by s0: quotients by its divisors are multiples of the one by it.
  std::unordered_map<Expr, int64_t> multiples;
  std::optional<Expr> of_multiple(Expr part) const;
  void take_multiple(Environment& environment, Expr part, Expr rest);
};

// (s0 + 3) // 4 is 8*(s0 // 32) there, and (s0 + 3) mod 4 is 3.
std::optional<Expr> Environment::Learned::of_multiple(Expr part) const {
  const bool divides = part.kind() == Kind::kFloorDiv;
  if (multiples.empty() || (!divides && part.kind() != Kind::kMod)) return std::nullopt;
  const Expr x = part.operands()[0], by = part.operands()[1];
  if (!by.is_const() || by.value() <= 1) return std::nullopt;
  Expr rest = 0;
  for (Expr term : terms_of(x))
    if (term.is_const()) rest = term;
  const auto known = multiples.find(x - rest);
  if (known == multiples.end() || known->second % by.value() != 0) return std::nullopt;
  if (!divides) return mod(rest, by);
  const Expr out = Expr(known->second / by.value()) * floordiv(x - rest, Expr(known->second)) + floordiv(rest, by);
  return out == part ? std::nullopt : std::optional(out);
}

// 14*s1*((s0 + 6) // 7) is 2*s0*s1 there.
std::optional<Expr> Environment::Learned::without_fractions(Expr product_of_parts) const {
  std::vector<Expr> factors(product_of_parts.operands().begin(), product_of_parts.operands().end());
  if (fractions.empty() || !factors[0].is_const()) return std::nullopt;
  int64_t times = factors[0].value();
  bool found = false;
  for (Expr& factor : factors) {
    const auto known = fractions.find(factor);
    if (known == fractions.end() || times % known->second.by != 0) continue;
    times /= known->second.by;
    factor = known->second.of;
    found = true;
  }
  if (!found) return std::nullopt;
  factors[0] = times;
  return product(factors);
}

// part == rest: where it says that one number divides another, what stands for others is told by quotients of that, too.
void Environment::Learned::take_multiple(Environment& environment, Expr part, Expr rest) {
  constexpr int64_t kMostDivisor = 1 << 20;
  if (part.kind() != Kind::kMod || !rest.is_const(0) || !part.operands()[1].is_const()) return;
  const Expr x = part.operands()[0];
  int64_t& divisor = multiples.try_emplace(x, 1).first->second;
  const int64_t all = std::lcm(divisor, part.operands()[1].value());
  if (all <= divisor || all > kMostDivisor) return;
  divisor = all;
  const auto told = [this](Expr e) { return substitute_parts(e, [this](Expr p) { return of_multiple(p); }); };
  std::unordered_map<Expr, Expr> numbers;
  for (const auto& [known, number] : environment.numbers_) {
    numbers.emplace(known, told(number));
    if (const Expr again = told(known); is_part(again)) numbers.emplace(again, told(number));
  }
  environment.numbers_ = std::move(numbers);
  for (auto& [symbol, stands_for] : environment.solved_) stands_for = told(stands_for);
  const auto before = fractions;
  for (const auto& [known, fraction] : before)
    if (const Expr again = told(known); is_part(again))
      fractions.emplace(again, Fraction{fraction.by, told(fraction.of)});
  if (const Expr quotient = floordiv(x, Expr(all)); is_part(quotient)) fractions.emplace(quotient, Fraction{all, x});
}

Environment::Environment() : learned_(std::make_unique<Learned>()) {}
Environment::~Environment() = default;
Environment::Environment(Environment&&) noexcept = default;

int64_t Environment::now(Expr e) const {
  if (e.is_const()) return e.value();
  return evaluate(e, [this](Expr variable) {
    const std::optional<int> k = size_symbol_index(variable);
    if (k && *k >= kMaxSizeSymbols) return found_in_call(variable).value_or(kDataSizeShown);
    FLASHOVER_CHECK(k && static_cast<size_t>(*k) < now_.size()) << "no size " << variable.str() << " in this trace";
    return now_[static_cast<size_t>(*k)];
  });
}

Expr Environment::canonical(Expr e) const {
  const Learned& l = *learned_;  // (as far as it has come: to bring it up to date asks for canonical forms)
  if (e.is_const() || (replaced_ == 0 && l.most.empty())) return e;
  const bool kept = l.solved == replaced_;
  if (kept)
    if (const auto known = l.canonical.find(e); known != l.canonical.end()) return known->second;
  const Expr out = substitute_parts(e, [&](Expr part) -> std::optional<Expr> {
    if (part.kind() == Kind::kMul) return l.without_fractions(part);
    if (const auto multiple = l.of_multiple(part)) return multiple;
    const auto& known = is_part(part) ? numbers_ : solved_;
    if (const auto found = known.find(part); found != known.end()) return found->second;
    if (!is_part(part) || l.most.empty()) return std::nullopt;
    const Range range = with_bounds(part, l.least, l.most).range();  // (s0 + 6) // 7 is 1 for sizes from 1 to 7
    return range.lo == range.hi ? std::optional(Expr(range.lo)) : std::nullopt;
  });
  if (kept) learned_->canonical.emplace(e, out);
  return out;
}

// What stands in guards: they have to say of quotients what they are.
Expr Environment::by_symbols(Expr e) const {
  if (e.is_const() || solved_.empty()) return e;
  return substitute(e, [this](Expr variable) -> std::optional<Expr> {
    const auto known = solved_.find(variable);
    return known == solved_.end() ? std::nullopt : std::optional(known->second);
  });
}

namespace {

// True: it says more than was known.
bool take_most(const SizeGuard& g, Bounds& out) {
  const bool strict = g.relation == Relation::kLess;
  if ((!strict && g.relation != Relation::kLessEqual) || !size_symbol_index(g.a) || !g.b.is_const() || far_above(g.b))
    return false;
  const int64_t most = g.b.value() - (strict ? 1 : 0);
  const auto [known, fresh] = out.try_emplace(g.a, most);
  if (!fresh && known->second <= most) return false;
  known->second = most;
  return true;
}

// The least that a guard leaves of sizes: 5 of s0 for 2 <= (s0 + 1) // 3, 1 of both for 0 < s0*s1.
bool take_least(const SizeGuard& g, Bounds& out) {
  const auto& [relation, a, b] = g;
  bool more = false;
  const auto take = [&](Expr size, int64_t number) {
    int64_t& known = out[size];
    more = more || number > known;
    known = std::max(known, number);
    return more;
  };
  const bool not_zero = relation == Relation::kNotEqual && b.is_const(0);
  if (!not_zero && ((relation != Relation::kLess && relation != Relation::kLessEqual) || !a.is_const() || far_above(a)))
    return false;
  Expr e = not_zero ? a : b;
  int64_t number = not_zero ? 1 : a.value() + (relation == Relation::kLess ? 1 : 0);
  for (int depth = 0; depth < 4; ++depth) {
    const auto parts = e.operands();
    if (size_symbol_index(e)) return take(e, number);
    if (not_zero && e.kind() != Kind::kMul) return false;
    if (e.kind() == Kind::kFloorDiv && parts[1].is_const() && parts[1].value() > 0) {
      if (__builtin_mul_overflow(number, parts[1].value(), &number)) return false;
      e = parts[0];
    } else if (e.kind() == Kind::kAdd && parts.back().is_const()) {
      number = number - parts.back().value();
      e = e - parts.back();
    } else if (e.kind() == Kind::kMul && parts.size() == 2 && parts[0].is_const() && parts[0].value() > 0) {
      number = ceildiv(Expr(number), parts[0]).value();
      e = parts[1];
    } else if (e.kind() == Kind::kMul && number > 0 && (not_zero || !parts[0].is_const() || parts[0].value() > 0)) {
      const auto is_size = [](Expr factor) { return size_symbol_index(factor).has_value(); };
      const auto sizes = parts.subspan(parts[0].is_const() ? 1 : 0);
      if (std::ranges::all_of(sizes, is_size))
        for (Expr size : sizes) take(size, 1);
      return more;
    } else {
      return false;
    }
  }
  return false;
}

}  // namespace

const Environment::Learned& Environment::learned() const {
  Learned& l = *learned_;
  if (l.guards == guards_.size() && l.solved == replaced_) return l;
  for (auto& list : l.simplest) list.reset();
  if (l.solved != replaced_ || l.bounds != bounds_) {
    l.solved = replaced_;
    l.bounds = bounds_;
    l.guards = 0;
    l.facts.clear();
    l.presumed.clear();
    l.least.clear();
    l.most.clear();
    l.canonical.clear();
    ++l.changes;
  }
  for (; l.guards < guards_.size(); ++l.guards) {
    const SizeGuard& g = guards_[l.guards].guard;
    SizeGuard fact{g.relation, canonical(g.a), canonical(g.b)};
    // (That a quotient is some number is told by the number in its place, and more of it by the fact as it was.)
    if (fact.a.is_const() && fact.b.is_const()) fact = {g.relation, by_symbols(g.a), by_symbols(g.b)};
    l.facts.emplace_back(std::move(fact));
    const bool bounds = take_least(g, l.least) | take_most(g, l.most);
    if (bounds) {
      l.presumed.clear();
      l.canonical.clear();
    }
    if (bounds || g.relation == Relation::kEqual) ++l.changes;
  }
  return l;
}

// The same for sizes that are larger by what the guards say is their least.
Expr Environment::raised(Expr e) const { return with_bounds(e, learned().least, learned().most); }

std::optional<bool> Environment::known(Relation r, Expr a, Expr b) const {
  if (far_above(a) != far_above(b)) return r == Relation::kNotEqual || (r != Relation::kEqual && far_above(b));
  if (const auto answer = proven(r, a, b)) return answer;
  if (far_above(a)) return std::nullopt;
  constexpr size_t kMostAnswers = 1 << 16;
  const Learned& now = learned();
  if (learned_->answers.size() > kMostAnswers) learned_->answers.clear();
  const auto [entry, fresh] = learned_->answers.try_emplace(Learned::Asked{r, a - b, presuming});
  Learned::Answer& answer = entry->second;
  if (!answer.is && (fresh || answer.changes != now.changes))
    answer.is = found_known(r, a, b);
  else if (!answer.is)
    answer.is = by_facts(r, a, b, answer.facts);
  answer.facts = now.facts.size();
  answer.changes = now.changes;
  return answer.is;
}

std::optional<bool> Environment::found_known(Relation r, Expr a, Expr b) const {
  const auto larger = [this](Expr e) { return raised(e); };
  if (const auto answer = proven_of_larger(r, a - b, larger)) return answer;
  if (divides(a) || divides(b)) {
    if (const auto answer = proven_unrounded(r, a - b, larger)) return answer;
    if (const auto answer = known_of_multiples(r, a, b)) return answer;
  }
  if (presuming)
    if (const auto answer = proven_of_larger(r, a - b, [this](Expr e) { return presumed(e); })) return answer;
  return by_facts(r, a, b, 0);
}

// By one of the facts from the first on.
std::optional<bool> Environment::by_facts(Relation r, Expr a, Expr b, size_t first) const {
  const std::vector<PreparedFact>& facts = learned().facts;
  Question question(r, a, b);
  for (size_t i = first; i < facts.size(); ++i)
    if (const auto answer = question.answer_by(facts[i])) return answer;
  if (!presuming || least_over_loops(a - b) != a - b) return std::nullopt;
  for (size_t i = learned_->presumed.size(); i < facts.size(); ++i)
    learned_->presumed.emplace_back(SizeGuard{facts[i].guard().relation, presumed(facts[i].difference()), Expr(0)});
  Question of_larger(r, presumed(a - b));
  for (size_t i = first; i < facts.size(); ++i)
    if (const auto answer = of_larger.answer_by(learned_->presumed[i])) return answer;
  for (const PreparedFact& fact : learned_->opened)
    if (const auto answer = question.answer_by(fact)) return answer;
  return std::nullopt;
}

// By what the guards say of divisors.
std::optional<bool> Environment::known_of_multiples(Relation r, Expr a, Expr b) const {
  std::vector<Remainder> zero;
  for (const PreparedFact& fact : learned().facts)
    if (fact.guard().relation == Relation::kEqual)
      if (const auto r = remainder_of(fact.difference())) zero.push_back(*r);
  std::vector<Remainder> left;
  collect_remainders(a, left);
  collect_remainders(b, left);
  collect_quotients(a, left);
  collect_quotients(b, left);
  const Multiples multiples(std::move(zero), std::move(left));
  return multiples.empty() ? std::nullopt : proven(r, multiples.of(a), multiples.of(b));
}

// An equality that holds where numbers divide sizes, as they do in this call, is asked for in those words: more follows
// from them.
bool Environment::holds_by_divisors(Expr a, Expr b) {
  std::vector<Remainder> quotients;
  collect_quotients(a, quotients);
  collect_quotients(b, quotients);
  std::erase_if(quotients, [&](const Remainder& r) { return now(mod(r.x, Expr(r.by))) != 0; });
  const Multiples multiples(quotients, {});
  if (multiples.empty() || proven(Relation::kEqual, multiples.of(a), multiples.of(b)) != true) return false;
  for (const Remainder& r : quotients) holds(Relation::kEqual, mod(r.x, Expr(r.by)), Expr(0));
  return true;
}

bool Environment::is_large(Expr e) const {
  const PresumeScope presume;
  return known(Relation::kLessEqual, Expr(kLeastPresumed), e) == true;
}

bool Environment::has_steps(Expr e) const {
  std::vector<Expr> variables;
  if (!steps_.empty()) collect_vars(e, variables);
  return std::ranges::any_of(variables, [&](Expr v) {
    const std::optional<int> symbol = size_symbol_index(v);
    return symbol && steps_.contains(*symbol);
  });
}

Expr Environment::settled(Expr e) {
  e = canonical(e);
  if (e.is_const() || size_symbol_index(e) || has_data_size(e)) return e;
  const bool large = is_large(e);
  const bool opened = opens && now(e) > 0 && (!large || has_steps(e)) && open(e);
  const int64_t least = large || opened ? kSizeSymbolRange.lo : kLeastPresumed;
  return holds(Relation::kLessEqual, Expr(least), e) ? canonical(e) : Expr(specialize(e));
}

Expr Environment::presumed(Expr e) const { return with_bounds(e, learned().least, learned().most, &steps_); }

// Presumes that its only symbol makes more than one element of it, and notes from where on that is so.
bool Environment::open(Expr e) {
  // What is more in this call is opened for the sake of a few small sizes: each costs the trace a look.
  constexpr int64_t kNear = 8;
  std::vector<Expr> variables;
  collect_vars(e, variables);
  const std::optional<int> symbol = variables.size() == 1 ? size_symbol_index(variables[0]) : std::nullopt;
  if (!symbol || has_data_size(e) || std::ranges::find(opened_, e) != opened_.end()) return false;
  const std::optional<std::vector<int64_t>> rises = rises_of(e, variables[0], kLeastPresumed);
  if (!rises || (now(e) > 1 && !rises->empty() && rises->back() > kNear)) return false;
  if (!rises->empty()) steps_[*symbol].insert(rises->begin(), rises->end());
  opened_.push_back(e);
  learned_->presumed.clear();
  ++learned_->changes;
  if (!is_large(e))
    learned_->opened.emplace_back(
        SizeGuard{Relation::kLessEqual, Expr(kLeastPresumed), e});  // it is, but nothing shows it
  return true;
}

// difference == 0: a symbol with the coefficient 1 or -1 that is in no other term stands for the rest; the last one
// there is, so that the symbol of an earlier input stays.
bool Environment::solve(Expr difference) {
  std::vector<Expr> variables;
  collect_vars(difference, variables);
  const size_t known = now_.size();
  for (size_t i = known + static_cast<size_t>(data_sizes_); i-- > 0;) {
    const Expr symbol = i < known ? size_symbol(static_cast<int>(i)) : data_size_symbol(static_cast<int>(i - known));
    // (Guards are asked before the call: what is read from its inputs does not follow from data.)
    if (i < known && has_data_size(difference)) break;
    if (std::find(variables.begin(), variables.end(), symbol) == variables.end()) continue;
    const std::optional<Expr> by = coefficient(difference, symbol);
    if (!by || !(by->is_const(1) || by->is_const(-1))) continue;
    const Expr rest = by->is_const(1) ? symbol - difference : symbol + difference;
    std::vector<Expr> left;
    collect_vars(rest, left);
    if (std::find(left.begin(), left.end(), symbol) != left.end()) continue;
    std::vector<Expr> open = {symbol};  // symbols that may be numbers from now on
    for (const auto& [other, stands_for] : solved_)
      if (!stands_for.is_const()) open.push_back(other);
    std::sort(open.begin(), open.end(), [](Expr a, Expr b) { return size_symbol_index(a) < size_symbol_index(b); });
    solved_.emplace(symbol, rest);
    solved_at_.emplace(symbol, here());
    ++replaced_;
    for (auto& [other, stands_for] : solved_) stands_for = canonical(stands_for);
    std::unordered_map<Expr, Expr> numbers;
    for (const auto& [part, number] : std::exchange(numbers_, {}))
      numbers.emplace(by_symbols(part), by_symbols(number));
    numbers_ = std::move(numbers);
    std::unordered_map<Expr, Learned::Fraction> fractions;
    for (const auto& [part, fraction] : std::exchange(learned_->fractions, {}))
      fractions.emplace(by_symbols(part), Learned::Fraction{fraction.by, by_symbols(fraction.of)});
    learned_->fractions = std::move(fractions);
    std::unordered_map<Expr, int64_t> multiples;
    for (const auto& [x, divisor] : std::exchange(learned_->multiples, {})) multiples.emplace(by_symbols(x), divisor);
    learned_->multiples = std::move(multiples);
    for (Expr other : open)
      if (const Expr number = solved_.at(other); number.is_const() && !has_data_size(other))
        fixed_.push_back({*size_symbol_index(other), number.value(), how_, here()});
    // What was known of the symbol by its range is no longer in any type.
    const bool all_of_range = has_data_size(symbol) || is_large(rest);
    if (!rest.is_const()) holds(Relation::kLessEqual, Expr(all_of_range ? symbol.range().lo : kLeastPresumed), rest);
    return true;
  }
  return false;
}

// (x + 1) // 2 is x // 2 then, which has one form from now on.
void Environment::take_fraction(Expr part, int64_t by, Expr of) {
  learned_->fractions.try_emplace(part, Learned::Fraction{by, of});
  if (const Expr rounded = floordiv(of, Expr(by)); is_part(rounded) && !contains(part, rounded))
    numbers_.try_emplace(rounded, part);
}

// A product that is 1: its factors are, where none is below 0.
void Environment::take_ones(Expr factors) {
  const auto is_quotient = [this](Expr f) { return is_part(f) && raised(f).range().lo >= 0; };
  if (!std::ranges::all_of(factors.operands(), is_quotient)) return;
  for (Expr f : factors.operands()) numbers_.try_emplace(f, 1);
  ++replaced_;
}

// times*quotient == rest, where the rest is a number, or simpler.
void Environment::find_number(const SizeGuard& fact) {
  if (fact.relation != Relation::kEqual || has_data_size(fact.a) || has_data_size(fact.b)) return;
  const Expr difference = without_content(canonical(fact.a) - canonical(fact.b));
  for (Expr term : terms_of(difference)) {
    const auto [times, part] = coefficient_and_rest(term);
    const Expr rest = times > 0 ? term - difference : difference - term;
    if (part.kind() == Kind::kMul && std::abs(times) == 1 && rest.is_const(1)) take_ones(part);
    if (!is_part(part)) continue;
    if (contains(rest, part)) continue;
    const int64_t by = std::abs(times);
    if (by == 1 && rest.is_const()) {
      numbers_.try_emplace(part, rest);
      learned_->take_multiple(*this, part, rest);
    } else if (by > 1) {
      take_fraction(part, by, rest);
    } else {
      continue;
    }
    ++replaced_;
    return;
  }
}

// a <= b: the less, and the larger of the two are known from now on.
void Environment::find_order(const SizeGuard& fact) {
  if (fact.relation != Relation::kLess && fact.relation != Relation::kLessEqual) return;
  if (!has_data_size(fact.a) && !has_data_size(fact.b)) return;  // (others are settled where they are asked for)
  const auto take = [&](Expr part, Expr stands_for) {
    if (is_part(part) && !(part == stands_for) && numbers_.try_emplace(part, stands_for).second) ++replaced_;
  };
  take(min(fact.a, fact.b), fact.a);
  take(max(fact.a, fact.b), fact.b);
}

bool Environment::holds(Relation r, Expr a, Expr b) {
  a = canonical(a);
  b = canonical(b);
  if (const auto answer = known(r, a, b)) return *answer;
  if (assumes_) return false;
  if (has_data_size(a) || has_data_size(b)) return holds_usually(r, a, b);
  const bool answer = satisfied(r, now(a), now(b));
  if (answer && r == Relation::kEqual && holds_by_divisors(a, b)) return true;
  const SizeGuard fact = answer ? SizeGuard{r, a, b} : negated({r, a, b});
  if (fact.relation == Relation::kEqual && solve(a - b)) return answer;
  const std::string line = here();
  for (const SizeGuard& part : simplest(fact, [this](Expr e) { return raised(e).range().lo; })) {
    if (known(part.relation, part.a, part.b) == true) continue;
    guards_.push_back({part, line});
    find_number(part);
  }
  return answer;
}

bool Environment::follows(Relation r, Expr a, Expr b) const { return known(r, canonical(a), canonical(b)) == true; }

int64_t Environment::specialize(Expr e, Fixing how) {
  e = canonical(e);
  if (has_data_size(e)) {
    if (const std::optional<int64_t> value = found_in_call(e)) {
      const std::optional<bool> so = known(Relation::kEqual, e, Expr(*value));
      if (so.value_or(false) || (!so && expect(Relation::kEqual, e, Expr(*value), true))) return *value;
    }
    const std::string why = "data-dependent: the number " + e.str() + " follows from data, and is needed as a number";
    if (refuse) refuse(why);
    throw Declined(why);
  }
  const int64_t value = now(e);
  how_ = how;
  holds(Relation::kEqual, e, Expr(value));
  how_ = Fixing::kCompared;
  return value;
}

std::optional<int64_t> Environment::stated(Expr e) const {
  for (const AskedGuard& g : guards_) {
    if (g.guard.relation != Relation::kEqual) continue;
    const Expr zero = g.guard.a - g.guard.b;
    for (Expr number : {e - zero, e + zero})
      if (number.is_const()) return number.value();
  }
  return std::nullopt;
}

const std::vector<AskedGuard>& Environment::canonical_guards(bool of_data) const {
  learned();
  std::optional<std::vector<AskedGuard>>& kept = learned_->simplest[of_data ? 1 : 0];
  if (kept) return *kept;
  struct Candidate {
    AskedGuard asked;
    PreparedFact fact;
    Question question;
  };
  std::vector<Candidate> out;
  for (const auto& [g, where] : guards_) {
    const SizeGuard now{g.relation, by_symbols(g.a), by_symbols(g.b)};
    if ((has_data_size(now.a) || has_data_size(now.b)) && !of_data) continue;
    if (proven(now.relation, now.a, now.b) == true) continue;
    Candidate c{{now, where}, PreparedFact(now), Question(now.relation, now.a, now.b)};
    if (std::ranges::any_of(out, [&](const Candidate& o) { return c.question.answer_by(o.fact) == true; })) continue;
    std::erase_if(out, [&](Candidate& o) { return o.question.answer_by(c.fact) == true; });
    out.push_back(std::move(c));
  }
  kept.emplace();
  for (Candidate& c : out) kept->push_back(std::move(c.asked));
  return *kept;
}

std::vector<AskedGuard> Environment::asked() const { return canonical_guards(false); }

namespace {
std::vector<SizeGuard> without_lines(std::vector<AskedGuard> asked) {
  std::vector<SizeGuard> out;
  for (AskedGuard& g : asked) out.push_back(std::move(g.guard));
  return out;
}
}  // namespace

std::vector<SizeGuard> Environment::guards() const { return without_lines(canonical_guards(false)); }
std::vector<SizeGuard> Environment::facts() const { return without_lines(canonical_guards(true)); }

std::string Environment::where_equal(int symbol) const {
  const auto found = solved_at_.find(size_symbol(symbol));
  return found == solved_at_.end() ? "" : found->second;
}

// Bounds are tried out: guards are comparisons of a few operations, whose answer changes near small numbers or the
// bounds, mostly.
std::vector<BrokenPromise> Environment::broken() const {
  constexpr int64_t kTried = 4096;
  std::vector<BrokenPromise> out;
  for (const Fixed& f : fixed_) {
    const Promise& p = promise(f.symbol);
    if (p.kind == Promise::Kind::kDynamic || (p.kind == Promise::Kind::kUnbacked && f.how != Fixing::kCompared))
      out.push_back({f, std::nullopt});
  }
  for (size_t k = 0; k < promises_.size(); ++k) {
    const Promise& p = promises_[k];
    const Expr symbol = size_symbol(static_cast<int>(k));
    if (!p.bounded || !(canonical(symbol) == symbol)) continue;
    const int64_t least = std::max(p.least, kLeastPresumed);  // (a promise says nothing of 0 and 1)
    for (size_t i = bounds_; i < guards_.size(); ++i) {
      const SizeGuard g{guards_[i].guard.relation, by_symbols(guards_[i].guard.a), by_symbols(guards_[i].guard.b)};
      std::vector<Expr> variables;
      collect_vars(g.a, variables);
      collect_vars(g.b, variables);
      if (variables.empty() || !std::all_of(variables.begin(), variables.end(), [&](Expr v) { return v == symbol; }))
        continue;
      const auto fails = [&](int64_t size) {
        const auto value = [size](Expr) { return size; };
        return !satisfied(g.relation, evaluate(g.a, value), evaluate(g.b, value));
      };
      std::optional<int64_t> found;
      for (int64_t size = least; !found && size <= p.most && size - least < kTried; ++size)
        if (fails(size)) found = size;
      if (!found && p.most != Range::kInf && fails(p.most)) found = p.most;
      if (!found) continue;
      out.push_back({{static_cast<int>(k), *found, Fixing::kCompared, guards_[i].where}, g});
      break;
    }
  }
  return out;
}

AskScope::AskScope(Environment* environment) : before_(asked) { asked = environment; }
AskScope::~AskScope() { asked = before_; }

PresumeScope::PresumeScope() : before_(presuming) { presuming = true; }
PresumeScope::~PresumeScope() { presuming = before_; }

bool follows(Relation r, Expr a, Expr b) { return asked ? asked->follows(r, a, b) : proven(r, a, b) == true; }

std::optional<int64_t> number_of(Expr e) {
  if (e.is_const() || !asked) return e.as_const();
  return asked->assumes() ? asked->stated(e) : asked->specialize(e);
}

bool known_eq(Expr a, Expr b) {
  return asked ? asked->holds(Relation::kEqual, a, b) : proven_or_presumed(Relation::kEqual, a, b);
}
bool known_ne(Expr a, Expr b) {
  return asked ? asked->holds(Relation::kNotEqual, a, b) : proven_or_presumed(Relation::kNotEqual, a, b);
}
bool known_lt(Expr a, Expr b) {
  return asked ? asked->holds(Relation::kLess, a, b) : proven_or_presumed(Relation::kLess, a, b);
}
bool known_le(Expr a, Expr b) {
  return asked ? asked->holds(Relation::kLessEqual, a, b) : proven_or_presumed(Relation::kLessEqual, a, b);
}
bool known_divisible(Expr a, int64_t by) { return known_eq(mod(a, Expr(by)), Expr(0)); }

namespace {

// a and b are canonical. nullopt: nothing was asked.
std::optional<Expr> whole_quotient_of_equals(Expr a, Expr b) {
  if (asked->assumes() || has_data_size(a) || has_data_size(b)) return std::nullopt;
  std::vector<Expr> there, here;
  collect_vars(a, there);
  collect_vars(b, here);
  std::unordered_map<Expr, Expr> equal;
  for (Expr v : here) {
    if (std::ranges::find(there, v) != there.end()) continue;
    const auto same = std::ranges::find_if(there, [&](Expr w) { return asked->now(v) == asked->now(w); });
    if (same == there.end()) return std::nullopt;
    equal.emplace(v, *same);
  }
  const auto by_equals = [&](Expr v) {
    const auto found = equal.find(v);
    return found == equal.end() ? std::nullopt : std::optional(found->second);
  };
  if (equal.empty() || !whole_quotient(a, substitute(b, by_equals))) return std::nullopt;
  for (const auto& [v, w] : equal) asked->holds(Relation::kEqual, v, w);
  return whole_quotient(asked->canonical(a), asked->canonical(b));
}

}  // namespace

Expr known_quotient(Expr a, Expr b) {
  if (!asked) return quotient(a, b);
  a = asked->canonical(a);
  b = asked->canonical(b);
  if (const auto whole = whole_quotient(a, b)) return *whole;
  return whole_quotient_of_equals(a, b).value_or(floordiv(a, b));
}

}  // namespace flashover::sym
