// Hash-consed nodes in one canonical form, with ranges; constructors simplify, so equal expressions are one node.
#include "sym/sym.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"
#include "sym/bounded.h"
#include "sym/quotient.h"
#include "sym/samples.h"
#include "sym/terms.h"

namespace flashover::sym {

struct Node {
  Kind kind = Kind::kConst;
  int64_t value = 0;  // kConst
  int64_t hint = 0;
  Range range;
  size_t hash = 0;
  std::string name;              // kVar
  const Node* extent = nullptr;  // kVar below an expression that is no constant
  std::vector<Expr> operands;
  Samples samples{};
  uint64_t variables = 0;                // a bit of each: what has none of a variable's does not mention it
  bool size = false, data_size = false;  // a symbol of such a size is mentioned
};

namespace {

constexpr int64_t kInf = Range::kInf;

int64_t add_checked(int64_t a, int64_t b) {
  int64_t r = 0;
  FLASHOVER_CHECK(!__builtin_add_overflow(a, b, &r)) << "integer overflow in " << a << " + " << b;
  return r;
}
int64_t mul_checked(int64_t a, int64_t b) {
  int64_t r = 0;
  FLASHOVER_CHECK(!__builtin_mul_overflow(a, b, &r)) << "integer overflow in " << a << " * " << b;
  return r;
}
int64_t floordiv_int(int64_t a, int64_t b) {
  FLASHOVER_CHECK(b != 0) << "division by zero";
  int64_t q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}
int64_t mod_int(int64_t a, int64_t b) { return a - floordiv_int(a, b) * b; }
int64_t gcd_int(int64_t a, int64_t b) {
  a = a < 0 ? -a : a;
  b = b < 0 ? -b : b;
  while (b) std::swap(a %= b, b);
  return a;
}

// ---- range arithmetic, saturating at infinity
bool infinite(int64_t v) { return v == kInf || v == -kInf; }
int64_t sat_add(int64_t a, int64_t b) {
  if (infinite(a)) return a;  // opposite infinities never meet: lows are added to lows, highs to highs
  if (infinite(b)) return b;
  int64_t r = 0;
  if (__builtin_add_overflow(a, b, &r)) return a > 0 ? kInf : -kInf;
  return r;
}
int64_t sat_mul(int64_t a, int64_t b) {
  if (a == 0 || b == 0) return 0;
  int64_t r = 0;
  if (infinite(a) || infinite(b) || __builtin_mul_overflow(a, b, &r)) return (a < 0) != (b < 0) ? -kInf : kInf;
  return r;
}
Range range_add(Range a, Range b) { return {sat_add(a.lo, b.lo), sat_add(a.hi, b.hi)}; }
Range range_mul(Range a, Range b) {
  int64_t c[4] = {sat_mul(a.lo, b.lo), sat_mul(a.lo, b.hi), sat_mul(a.hi, b.lo), sat_mul(a.hi, b.hi)};
  return {*std::min_element(c, c + 4), *std::max_element(c, c + 4)};
}
int64_t sat_floordiv(int64_t a, int64_t b) {  // b > 0
  if (infinite(b)) return a >= 0 ? (infinite(a) ? kInf : 0) : (infinite(a) ? -kInf : -1);
  return infinite(a) ? a : floordiv_int(a, b);
}
// (Nothing is divided by 0.)
Range range_floordiv(Range a, Range b) {
  if (b.lo == 0) b.lo = 1;
  if (b.lo < 1) return {};
  int64_t c[4] = {sat_floordiv(a.lo, b.lo), sat_floordiv(a.lo, b.hi), sat_floordiv(a.hi, b.lo),
                  sat_floordiv(a.hi, b.hi)};
  return {*std::min_element(c, c + 4), *std::max_element(c, c + 4)};
}
Range range_mod(Range a, Range b) {
  if (b.lo == 0) b.lo = 1;
  if (b.lo < 1) return b.hi <= -1 ? Range{sat_add(b.lo, 1), 0} : Range{};
  Range r{0, infinite(b.hi) ? kInf : b.hi - 1};
  if (a.lo >= 0 && !infinite(a.hi)) r.hi = std::min(r.hi, a.hi);
  return r;
}

// Numbers inside names compare as numbers: i2 before i10.
int compare_names(std::string_view a, std::string_view b) {
  auto digit = [](char c) { return c >= '0' && c <= '9'; };
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      size_t m = i, n = j;
      while (m < a.size() && digit(a[m])) ++m;
      while (n < b.size() && digit(b[n])) ++n;
      if (m - i != n - j) return m - i < n - j ? -1 : 1;
      if (int c = a.substr(i, m - i).compare(b.substr(j, n - j))) return c;
      i = m, j = n;
    } else if (a[i] != b[j]) {
      return a[i] < b[j] ? -1 : 1;
    } else {
      ++i, ++j;
    }
  }
  return a.size() - i == b.size() - j ? 0 : (i == a.size() ? -1 : 1);
}

}  // namespace

// Creates and finds nodes. The order of operands must never depend on addresses or on creation order: the text of an
// expression is part of cache keys.
struct Interner {
  struct Hash {
    size_t operator()(const Node* n) const { return n->hash; }
  };
  struct Equal {
    bool operator()(const Node* a, const Node* b) const {
      return a->kind == b->kind && a->value == b->value && a->name == b->name && a->operands == b->operands;
    }
  };
  static constexpr int64_t kSmall = 2048;  // constants in [-kSmall, kSmall) need no lock

  std::mutex mutex;
  std::deque<Node> nodes;
  std::unordered_set<const Node*, Hash, Equal> set;
  std::unordered_map<std::string, const Node*> variables;
  std::array<Node, 2 * kSmall> small;

  Interner() {
    for (int64_t i = 0; i < 2 * kSmall; ++i) fill_const(small[i], i - kSmall);
  }
  static void fill_const(Node& n, int64_t v) {
    n.value = n.hint = v;
    n.range = {v, v};
    n.samples = samples_of_constant(v);
    n.hash = std::hash<int64_t>()(v) * 0x9E3779B97F4A7C15ull;
  }
  static Interner& get() {
    static Interner* interner = new Interner;  // never destroyed: expressions live in other statics
    return *interner;
  }
  static Expr wrap(const Node* n) { return Expr(n); }

  const Node* constant(int64_t v) {
    if (v >= -kSmall && v < kSmall) return &small[v + kSmall];
    Node n;
    fill_const(n, v);
    return intern(std::move(n));
  }
  const Node* intern(Node n) {
    std::lock_guard lock(mutex);
    auto it = set.find(&n);
    if (it != set.end()) return *it;
    if (!n.operands.empty()) {
      n.samples = samples_of_parts(n.kind, n.operands);
      for (const Expr part : n.operands) {
        n.variables |= part.node()->variables;
        n.size = n.size || part.node()->size;
        n.data_size = n.data_size || part.node()->data_size;
      }
    }
    nodes.push_back(std::move(n));
    set.insert(&nodes.back());
    return &nodes.back();
  }
  Expr make(Kind kind, std::vector<Expr> operands, Range range, int64_t hint) {
    Node n;
    n.kind = kind;
    n.operands = std::move(operands);
    n.range = range;
    n.hint = hint;
    n.hash = static_cast<size_t>(kind) + 17;
    for (Expr e : n.operands) n.hash = (n.hash ^ e.node()->hash) * 0x9E3779B97F4A7C15ull + (n.hash >> 29);
    return Expr(intern(std::move(n)));
  }
  Expr variable(std::string_view name, Range range, int64_t hint) {
    std::lock_guard lock(mutex);
    std::string key(name);
    auto it = variables.find(key);
    if (it == variables.end()) {
      Node n;
      n.kind = Kind::kVar;
      n.name = key;
      n.range = range;
      n.hint = hint;
      n.hash = std::hash<std::string_view>()(name);
      n.samples = samples_of_variable(name, range);
      n.variables = uint64_t{1} << n.hash % 64;
      const std::optional<int> symbol = size_symbol_of_name(name);
      n.size = symbol.has_value();
      n.data_size = symbol && *symbol >= kMaxSizeSymbols;
      nodes.push_back(std::move(n));  // found once it is whole: either may have no memory
      it = variables.emplace(std::move(key), &nodes.back()).first;
    }
    FLASHOVER_CHECK(it->second->range == range) << "variable " << name << " was declared with another range";
    return Expr(it->second);
  }
  Expr variable_below(std::string_view name, Expr extent) {
    const int64_t hi = extent.range().hi;
    const Expr v = variable(name, {0, hi == kInf ? kInf : std::max<int64_t>(hi - 1, 0)}, 0);
    if (extent.is_const()) return v;
    const std::lock_guard lock(mutex);
    Node& n = const_cast<Node&>(*v.node());  // (ours, and nobody reads it without the lock before it is returned)
    FLASHOVER_CHECK(!n.extent || n.extent == extent.node())
        << "variable " << name << " was declared below another size";
    if (!n.extent) n.samples = samples_below(n.samples, extent.node()->samples);
    n.extent = extent.node();
    any_sizes_.store(true, std::memory_order_relaxed);
    return v;
  }

  // Whether there are size symbols, or variables below expressions.
  bool any_sizes() const { return any_sizes_.load(std::memory_order_relaxed); }
  std::atomic<bool> any_sizes_{false};
  int64_t size_hint = 128;
  std::optional<Expr> find_variable(std::string_view name) {
    std::lock_guard lock(mutex);
    auto it = variables.find(std::string(name));
    if (it == variables.end()) return std::nullopt;
    return Expr(it->second);
  }
};

namespace {

Expr make(Kind kind, std::vector<Expr> operands, Range range, int64_t hint) {
  return Interner::get().make(kind, std::move(operands), range, hint);
}

int compare(Expr a, Expr b) {
  if (a == b) return 0;
  if (a.kind() != b.kind()) return a.kind() < b.kind() ? -1 : 1;
  if (a.is_const()) return a.value() < b.value() ? -1 : 1;
  if (a.kind() == Kind::kVar) return compare_names(a.name(), b.name());
  auto x = a.operands(), y = b.operands();
  if (x.size() != y.size()) return x.size() < y.size() ? -1 : 1;
  for (size_t i = 0; i < x.size(); ++i)
    if (int c = compare(x[i], y[i])) return c;
  return 0;
}
bool before(Expr a, Expr b) { return compare(a, b) < 0; }

// ---- sums: the working form is (term, coefficient) pairs and a constant
struct Term {
  Expr e;  // neither a constant nor a sum, and without a constant coefficient
  int64_t coef;
};
struct Sum {
  std::vector<Term> terms;
  int64_t constant = 0;
};

Expr make_product(std::vector<Expr> factors);  // sorted, non-constant factors; coefficient first when there is one

// Splits 4*s0*i1 into (s0*i1, 4).
Term split_coefficient(Expr e) {
  if (e.kind() == Kind::kMul && e.operands()[0].is_const()) {
    auto ops = e.operands();
    if (ops.size() == 2) return {ops[1], ops[0].value()};
    return {make_product(std::vector<Expr>(ops.begin() + 1, ops.end())), ops[0].value()};
  }
  return {e, 1};
}

void add_into(Sum& sum, Expr e, int64_t factor) {
  auto one = [&](Expr t) {
    if (t.is_const()) {
      sum.constant = add_checked(sum.constant, mul_checked(t.value(), factor));
      return;
    }
    Term term = split_coefficient(t);
    term.coef = mul_checked(term.coef, factor);
    for (Term& old : sum.terms)
      if (old.e == term.e) {
        old.coef = add_checked(old.coef, term.coef);
        return;
      }
    sum.terms.push_back(term);
  };
  for (Expr t : terms_of(e)) one(t);
}
Sum to_sum(Expr e) {
  Sum s;
  add_into(s, e, 1);
  return s;
}

Expr scaled(Expr e, int64_t coef) {
  if (coef == 1) return e;
  std::vector<Expr> ops{Expr(coef)};
  if (e.kind() == Kind::kMul) {
    ops.insert(ops.end(), e.operands().begin(), e.operands().end());
  } else {
    ops.push_back(e);
  }
  return make(Kind::kMul, std::move(ops), range_mul(e.range(), {coef, coef}), sat_mul(e.hint(), coef));
}
Expr make_product(std::vector<Expr> factors) {
  if (factors.size() == 1) return factors[0];
  Range range{1, 1};
  int64_t hint = 1;
  for (Expr f : factors) {
    range = range_mul(range, f.range());
    hint = sat_mul(hint, f.hint());
  }
  return make(Kind::kMul, std::move(factors), range, hint);
}

Expr product_without(std::span<const Expr> factors, size_t left_out) {
  Expr product(1);
  for (size_t i = 0; i < factors.size(); ++i)
    if (i != left_out) product *= factors[i];
  return product;
}

// Whether the sum has each of these terms, so many times.
bool has_terms(const Sum& s, const Sum& terms, int64_t times) {
  return terms.constant == 0 && std::ranges::all_of(terms.terms, [&](const Term& wanted) {
           int64_t coef = 0;
           if (__builtin_mul_overflow(wanted.coef, times, &coef)) return false;
           return std::ranges::any_of(s.terms, [&](const Term& t) { return t.e == wanted.e && t.coef == coef; });
         });
}

// c*b*(x // b) + c*(x mod b)  ->  c*x, where c may be a product of sizes, and b a product or a sum.
bool recombine(Sum& s) {
  for (size_t m = 0; m < s.terms.size(); ++m) {
    const Term term = s.terms[m];
    const auto factors = factors_of(term.e);
    for (size_t f = 0; f < factors.size(); ++f) {
      if (factors[f].kind() != Kind::kMod) continue;
      const Expr x = factors[f].operands()[0], b = factors[f].operands()[1], others = product_without(factors, f);
      Sum partners = to_sum(others * b * floordiv(x, b));
      if (partners.terms.empty() || !has_terms(s, partners, term.coef)) continue;
      if (std::ranges::find(partners.terms, term.e, &Term::e) != partners.terms.end()) continue;
      partners.terms.push_back(term);
      std::erase_if(s.terms, [&](const Term& t) {
        return std::ranges::find(partners.terms, t.e, &Term::e) != partners.terms.end();
      });
      add_into(s, others * x, term.coef);
      return true;
    }
  }
  return false;
}

// c*x + c*(-x mod b)  ->  c*b*((x + b - 1) // b), where c may be a product of sizes: what padding makes of a size.
bool round_up(Sum& s) {
  for (size_t m = 0; m < s.terms.size(); ++m) {
    const Term term = s.terms[m];
    const auto factors = factors_of(term.e);
    for (size_t f = 0; f < factors.size(); ++f) {
      if (factors[f].kind() != Kind::kMod || !factors[f].operands()[1].is_const()) continue;
      const Expr b = factors[f].operands()[1], others = product_without(factors, f);
      Expr x = -factors[f].operands()[0];
      const auto is_there = [&](const Term& part) {
        int64_t coef = 0;
        return !__builtin_mul_overflow(part.coef, term.coef, &coef) &&
               std::ranges::any_of(s.terms, [&](const Term& t) { return t.e == part.e && t.coef == coef; });
      };
      Sum parts = to_sum(others * x);
      if (b.is_const(2) && !std::ranges::all_of(parts.terms, is_there)) x = -x, parts = to_sum(others * x);  // as odd
      if (parts.terms.empty() || !std::ranges::all_of(parts.terms, is_there)) continue;
      const auto taken = [&](const Term& t) {
        return t.e == term.e || std::ranges::any_of(parts.terms, [&](const Term& part) { return part.e == t.e; });
      };
      std::erase_if(s.terms, taken);
      s.constant = add_checked(s.constant, mul_checked(-parts.constant, term.coef));
      add_into(s, others * b * floordiv(x + b - Expr(1), b), term.coef);
      return true;
    }
  }
  return false;
}

// c*k*(x // k)*rest  ->  c*x*rest where k divides x
bool multiply_out(Sum& s) {
  for (size_t i = 0; i < s.terms.size(); ++i) {
    const Term t = s.terms[i];
    const auto factors = factors_of(t.e);
    for (size_t f = 0; f < factors.size(); ++f) {
      if (factors[f].kind() != Kind::kFloorDiv) continue;
      const Expr x = factors[f].operands()[0], by = factors[f].operands()[1];
      if (!by.is_const() || by.value() < 2 || t.coef % by.value() != 0 || !mod(x, by).is_const(0)) continue;
      const Expr product = x * product_without(factors, f);
      s.terms.erase(s.terms.begin() + static_cast<ptrdiff_t>(i));
      add_into(s, product, t.coef / by.value());
      return true;
    }
  }
  return false;
}

Expr from_sum(Sum s) {
  auto drop_zeros = [&] { std::erase_if(s.terms, [](const Term& t) { return t.coef == 0; }); };
  drop_zeros();
  while (multiply_out(s) || (s.terms.size() > 1 && (recombine(s) || round_up(s)))) drop_zeros();
  if (s.terms.empty()) return Expr(s.constant);
  if (s.terms.size() == 1 && s.constant == 0) return scaled(s.terms[0].e, s.terms[0].coef);
  std::sort(s.terms.begin(), s.terms.end(), [](const Term& a, const Term& b) { return before(a.e, b.e); });
  std::vector<Expr> ops;
  ops.reserve(s.terms.size() + 1);
  Range range{s.constant, s.constant};
  int64_t hint = s.constant;
  for (const Term& t : s.terms) {
    ops.push_back(scaled(t.e, t.coef));
    range = range_add(range, ops.back().range());
    hint = sat_add(hint, ops.back().hint());
  }
  if (s.constant != 0) ops.push_back(Expr(s.constant));
  return make(Kind::kAdd, std::move(ops), range, hint);
}

Range sum_range(const Sum& s) {
  Range r{s.constant, s.constant};
  for (const Term& t : s.terms) r = range_add(r, range_mul(t.e.range(), {t.coef, t.coef}));
  return r;
}
// k with lo and hi both in [k*b, (k+1)*b), if there is one.
std::optional<int64_t> common_quotient(Range r, int64_t b) {
  if (infinite(r.lo) || infinite(r.hi)) return std::nullopt;
  int64_t k = floordiv_int(r.lo, b);
  return floordiv_int(r.hi, b) == k ? std::optional(k) : std::nullopt;
}

// sum = g * big + small, with g a divisor of b and small in [k*g, (k+1)*g): then
// sum // b = (big + k) // (b/g)  and  sum mod b = g * ((big + k) mod (b/g)) + small - k*g.
struct Split {
  int64_t g;
  Sum big;
  Sum small;  // minus k*g
};
std::optional<Split> split_by_divisor(const Sum& s, int64_t b) {
  std::vector<int64_t> candidates;
  for (const Term& t : s.terms) {
    int64_t g = gcd_int(t.coef, b);
    if (g > 1 && std::find(candidates.begin(), candidates.end(), g) == candidates.end()) candidates.push_back(g);
  }
  std::sort(candidates.rbegin(), candidates.rend());
  for (int64_t g : candidates) {
    Split split{g, {}, {}};
    for (const Term& t : s.terms) {
      if (t.coef % g == 0) {
        split.big.terms.push_back({t.e, t.coef / g});
      } else {
        split.small.terms.push_back(t);
      }
    }
    split.small.constant = mod_int(s.constant, g);
    split.big.constant = floordiv_int(s.constant, g);
    auto k = common_quotient(sum_range(split.small), g);
    if (!k) continue;
    split.big.constant = add_checked(split.big.constant, *k);
    split.small.constant = add_checked(split.small.constant, -mul_checked(*k, g));
    return split;
  }
  return std::nullopt;
}

// Takes out of `s` everything that is a multiple of b (constant b > 0); returns the quotient.
Sum take_multiples(Sum& s, int64_t b) {
  Sum q;
  for (Term& t : s.terms) {
    if (int64_t whole = t.coef / b) {
      q.terms.push_back({t.e, whole});
      t.coef -= whole * b;
    }
  }
  std::erase_if(s.terms, [](const Term& t) { return t.coef == 0; });
  q.constant = floordiv_int(s.constant, b);
  s.constant = mod_int(s.constant, b);
  return q;
}

int64_t floordiv_hint(int64_t a, int64_t b) { return b == 0 ? 0 : floordiv_int(a, b); }
int64_t mod_hint(int64_t a, int64_t b) { return b == 0 ? 0 : mod_int(a, b); }

Expr floordiv_const(Expr a, int64_t b) {
  if (b < 0) return floordiv_const(-a, -b);
  if (b == 1) return a;
  if (a.is_const()) return Expr(floordiv_int(a.value(), b));
  Sum rest = to_sum(a);
  Sum quotient = take_multiples(rest, b);
  Expr outside = from_sum(std::move(quotient));
  if (auto k = common_quotient(sum_range(rest), b)) return outside + Expr(*k);
  if (auto split = split_by_divisor(rest, b))
    return outside + floordiv_const(from_sum(std::move(split->big)), b / split->g);
  if (rest.terms.size() == 1 && rest.constant == 0 && rest.terms[0].coef == 1) {
    Expr e = rest.terms[0].e;
    auto ops = e.operands();
    int64_t product = 0;
    // (x // m) // b = x // (m*b);  (x mod m) // b = (x // b) mod (m/b) when b divides m
    if (e.kind() == Kind::kFloorDiv && ops[1].is_const() && ops[1].value() > 0 &&
        !__builtin_mul_overflow(ops[1].value(), b, &product))
      return outside + floordiv_const(ops[0], product);
    if (e.kind() == Kind::kMod && ops[1].is_const() && ops[1].value() > 0 && ops[1].value() % b == 0)
      return outside + mod(floordiv_const(ops[0], b), Expr(ops[1].value() / b));
  }
  Expr inside = from_sum(std::move(rest));
  Expr e =
      make(Kind::kFloorDiv, {inside, Expr(b)}, range_floordiv(inside.range(), {b, b}), floordiv_int(inside.hint(), b));
  return outside + e;
}

Expr mod_const(Expr a, int64_t b) {
  if (b < 0) return -mod_const(-a, -b);
  if (b == 1) return Expr(0);
  if (a.is_const()) return Expr(mod_int(a.value(), b));
  Sum rest = to_sum(a);
  take_multiples(rest, b);
  // c*(x mod m) = c*x modulo b when b divides c*m
  for (size_t i = 0; i < rest.terms.size(); ++i) {
    Term t = rest.terms[i];
    int64_t period = 0;
    if (t.e.kind() != Kind::kMod || !t.e.operands()[1].is_const()) continue;
    if (__builtin_mul_overflow(t.coef, t.e.operands()[1].value(), &period) || period % b != 0) continue;
    rest.terms.erase(rest.terms.begin() + static_cast<ptrdiff_t>(i));
    add_into(rest, t.e.operands()[0], t.coef);
    return mod_const(from_sum(std::move(rest)), b);
  }
  if (auto k = common_quotient(sum_range(rest), b)) {
    rest.constant -= mul_checked(*k, b);
    return from_sum(std::move(rest));
  }
  if (auto split = split_by_divisor(rest, b)) {
    Expr high = mod_const(from_sum(std::move(split->big)), b / split->g);
    return high * Expr(split->g) + from_sum(std::move(split->small));
  }
  Expr inside = from_sum(std::move(rest));
  return make(Kind::kMod, {inside, Expr(b)}, range_mod(inside.range(), {b, b}), mod_int(inside.hint(), b));
}

// Removes from `terms` one factor `b` (a symbolic, non-sum expression); nullopt when the term does not have it.
std::optional<Expr> divide_exactly(Expr term, Expr b) {
  if (term == b) return Expr(1);
  if (term.kind() != Kind::kMul) return std::nullopt;
  Term wanted = split_coefficient(b), have = split_coefficient(term);
  if (have.coef % wanted.coef != 0) return std::nullopt;
  std::vector<Expr> remaining;
  const auto factors = factors_of(have.e);
  remaining.assign(factors.begin(), factors.end());
  for (Expr f : factors_of(wanted.e)) {
    auto it = std::find(remaining.begin(), remaining.end(), f);
    if (it == remaining.end()) return std::nullopt;
    remaining.erase(it);
  }
  Expr result(have.coef / wanted.coef);
  for (Expr f : remaining) result = result * f;
  return result;
}

// a = b*quotient + rest with the terms of `a` that have the symbolic factor b in the quotient.
void split_symbolic(Expr a, Expr b, Expr& quotient, Expr& rest) {
  Sum q, r;
  auto one = [&](Expr t) {
    if (auto d = divide_exactly(t, b)) {
      add_into(q, *d, 1);
    } else {
      add_into(r, t, 1);
    }
  };
  if (a == b) {
    add_into(q, Expr(1), 1);
  } else {
    for (Expr t : terms_of(a)) one(t);
  }
  quotient = from_sum(std::move(q));
  rest = from_sum(std::move(r));
}
// Whether b is not 0, or made of sizes that are none where something divides by them.
bool may_divide(Expr b) {
  return proven_ne(b, Expr(0)) || (b.range().lo >= 0 && b.kind() != Kind::kMin && b.kind() != Kind::kMax);
}
bool in_zero_to(Expr e, Expr b) { return proven_le(Expr(0), e) && proven_lt(e, b); }

// a // b and a mod b of sums: s0*(s1 - 3) + i // (s1 - 3) is s0 for an i below s1 - 3. nullopt: nothing is known.
std::optional<Division> of_sums(Expr a, Expr b) {
  std::optional<Division> out = divide_by_sum(a, b);
  // (What is below b says that b is not 0.)
  const bool holds = out && (out->rest.is_const(0) ? may_divide(b) : in_zero_to(out->rest, b));
  return holds ? out : std::nullopt;
}

Expr extremum(Kind kind, Expr a, Expr b) {
  bool is_min = kind == Kind::kMin;
  std::vector<Expr> ops;
  auto take = [&](Expr e) {
    if (e.kind() == kind) {
      ops.insert(ops.end(), e.operands().begin(), e.operands().end());
    } else {
      ops.push_back(e);
    }
  };
  take(a);
  take(b);
  // Drop what another operand always beats; of two that are always equal the later one goes.
  std::vector<Expr> kept;
  std::sort(ops.begin(), ops.end(), before);
  ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
  for (size_t i = 0; i < ops.size(); ++i) {
    bool beaten = false;
    for (size_t j = 0; j < ops.size() && !beaten; ++j) {
      if (i == j) continue;
      bool le = is_min ? proven_le(ops[j], ops[i]) : proven_le(ops[i], ops[j]);
      bool ge = is_min ? proven_le(ops[i], ops[j]) : proven_le(ops[j], ops[i]);
      beaten = le && (!ge || j < i);
    }
    if (!beaten) kept.push_back(ops[i]);
  }
  if (kept.size() == 1) return kept[0];
  Range range = kept[0].range();
  int64_t hint = kept[0].hint();
  for (Expr e : kept) {
    Range r = e.range();
    range = is_min ? Range{std::min(range.lo, r.lo), std::min(range.hi, r.hi)}
                   : Range{std::max(range.lo, r.lo), std::max(range.hi, r.hi)};
    hint = is_min ? std::min(hint, e.hint()) : std::max(hint, e.hint());
  }
  return make(kind, std::move(kept), range, hint);
}

}  // namespace

Expr::Expr(int64_t constant) : node_(Interner::get().constant(constant)) {}
Kind Expr::kind() const { return node_->kind; }
int64_t Expr::value() const {
  if (!is_const() && has_size_symbol(*this)) throw Declined("symbolic size: " + str() + " has to be a number");
  FLASHOVER_CHECK(is_const()) << str() << " is not a constant";
  return node_->value;
}
std::optional<int64_t> Expr::as_const() const { return is_const() ? std::optional(node_->value) : std::nullopt; }
int64_t Expr::hint() const { return node_->hint; }
Range Expr::range() const { return node_->range; }
std::string_view Expr::name() const { return node_->name; }
std::span<const Expr> Expr::operands() const { return node_->operands; }

Expr var(std::string_view name, Range range, int64_t hint) { return Interner::get().variable(name, range, hint); }

std::optional<int> size_symbol_of_name(std::string_view name) {
  if (name.size() < 2 || name.size() > 5 || (name[0] != 's' && name[0] != 'u') || (name[1] == '0' && name.size() > 2))
    return std::nullopt;
  int k = 0;
  for (char c : name.substr(1)) {
    if (c < '0' || c > '9') return std::nullopt;
    k = 10 * k + (c - '0');
  }
  if (k >= kMaxSizeSymbols) return std::nullopt;
  return name[0] == 's' ? k : kMaxSizeSymbols + k;
}

Expr size_symbol(int k) {
  FLASHOVER_CHECK(k >= 0 && k < 2 * kMaxSizeSymbols) << "size symbol " << k;
  Interner::get().any_sizes_.store(true, std::memory_order_relaxed);
  if (k >= kMaxSizeSymbols)
    return var("u" + std::to_string(k - kMaxSizeSymbols), kSizeSymbolRange, Interner::get().size_hint);
  return var("s" + std::to_string(k), kSizeSymbolRange, Interner::get().size_hint);
}
std::optional<int> size_symbol_index(Expr e) {
  return e.kind() == Kind::kVar ? size_symbol_of_name(e.name()) : std::nullopt;
}
bool has_size_symbol(Expr e) { return e.node()->size; }
bool has_data_size(Expr e) { return e.node()->data_size; }
const Samples& samples(Expr e) { return e.node()->samples; }
void set_size_hint_for_test(int64_t hint) { Interner::get().size_hint = hint; }

Expr operator+(Expr a, Expr b) {
  if (a.is_const() && b.is_const()) return Expr(add_checked(a.value(), b.value()));
  if (a.is_const(0)) return b;
  if (b.is_const(0)) return a;
  Sum s = to_sum(a);
  add_into(s, b, 1);
  return from_sum(std::move(s));
}
Expr operator-(Expr a) { return a * Expr(-1); }
Expr operator-(Expr a, Expr b) {
  if (a == b) return Expr(0);
  Sum s = to_sum(a);
  add_into(s, b, -1);
  return from_sum(std::move(s));
}
Expr operator*(Expr a, Expr b) {
  if (a.is_const()) std::swap(a, b);
  if (b.is_const()) {
    int64_t c = b.value();
    if (a.is_const()) return Expr(mul_checked(a.value(), c));
    if (c == 0) return Expr(0);
    if (c == 1) return a;
    Sum s;
    add_into(s, a, c);
    return from_sum(std::move(s));
  }
  if (a.kind() == Kind::kAdd || b.kind() == Kind::kAdd) {  // distribute, so that sums stay affine in every variable
    Sum s;
    for (Expr x : terms_of(a))
      for (Expr y : terms_of(b)) add_into(s, x * y, 1);
    return from_sum(std::move(s));
  }
  Term x = split_coefficient(a), y = split_coefficient(b);
  std::vector<Expr> factors;
  for (const Expr& e : {x.e, y.e}) factors.insert(factors.end(), factors_of(e).begin(), factors_of(e).end());
  std::sort(factors.begin(), factors.end(), before);
  Sum s;
  add_into(s, make_product(std::move(factors)), mul_checked(x.coef, y.coef));
  return from_sum(std::move(s));
}

Expr floordiv(Expr a, Expr b) {
  if (b.is_const()) {
    FLASHOVER_CHECK(b.value() != 0) << "division by zero";
    return floordiv_const(a, b.value());
  }
  if (const int64_t common = std::gcd(content(a), content(b)); common > 1)
    return floordiv(divided_by(a, common), divided_by(b, common));
  if (const auto sums = of_sums(a, b)) return sums->quotient;
  Expr quotient, rest;
  split_symbolic(a, b, quotient, rest);
  if (may_divide(b)) {
    if (rest.is_const(0) || in_zero_to(rest, b)) return quotient;
  } else {
    quotient = Expr(0);
    rest = a;
  }
  Expr e =
      make(Kind::kFloorDiv, {rest, b}, range_floordiv(rest.range(), b.range()), floordiv_hint(rest.hint(), b.hint()));
  return quotient + e;
}

Expr mod(Expr a, Expr b) {
  if (b.is_const()) {
    FLASHOVER_CHECK(b.value() != 0) << "modulo by zero";
    return mod_const(a, b.value());
  }
  if (const int64_t common = std::gcd(content(a), content(b)); common > 1)
    return Expr(common) * mod(divided_by(a, common), divided_by(b, common));
  if (const auto sums = of_sums(a, b)) return sums->rest;
  Expr quotient, rest;
  split_symbolic(a, b, quotient, rest);
  if (may_divide(b)) {
    if (rest.is_const(0) || in_zero_to(rest, b)) return rest;
  } else {
    rest = a;
  }
  return make(Kind::kMod, {rest, b}, range_mod(rest.range(), b.range()), mod_hint(rest.hint(), b.hint()));
}

Expr min(Expr a, Expr b) { return extremum(Kind::kMin, a, b); }
Expr max(Expr a, Expr b) { return extremum(Kind::kMax, a, b); }

namespace {

// Whether bounds of e may follow from what depends on sizes.
bool depends_on_sizes(Expr e) {
  if (e.kind() == Kind::kVar) return e.node()->extent || size_symbol_of_name(e.name());
  return std::ranges::any_of(e.operands(), depends_on_sizes);
}

// An expression that e is nowhere less than: its sizes, or its loops, are put at their least value where e grows with
// them, loops at their largest where it falls.
Expr at_ends(Expr e, bool sizes) {
  std::vector<Expr> vars;
  collect_vars(e, vars);
  for (Expr v : vars) {
    if (size_symbol_of_name(v.name()).has_value() != sizes || (!sizes && v.range().lo != 0)) continue;
    const auto c = coefficient(e, v);
    if (!c) continue;
    std::optional<Expr> end;
    if (c->range().lo >= 0) end = Expr(v.range().lo);
    if (c->range().hi <= 0 && v.node()->extent) end = extent_of(v) - 1;
    if (end) e = substitute(e, [&](Expr x) { return x == v ? end : std::nullopt; });
  }
  return e;
}
// Loops before the sizes that bound them.
Expr lower_bound(Expr e) { return at_ends(at_ends(e, false), true); }

bool loops_over_sizes(Expr e) {
  if (e.kind() == Kind::kVar) return e.node()->extent != nullptr;
  return std::ranges::any_of(e.operands(), loops_over_sizes);
}

// The same with what x // b lies between in its place, (x - b + 1) / b and x / b, times what makes that whole: that
// s0 - 2*i is 2 and more for an i below s0 // 2.
bool at_least_by_ends_of_quotients(Expr e, int64_t least) {
  constexpr int64_t kLargest = int64_t{1} << 20, kRounds = 3;  // rounds: of quotients of quotients
  const auto divisor = [](const Term& t) {
    const bool is_quotient = t.e.kind() == Kind::kFloorDiv && t.e.operands()[1].is_const();
    return is_quotient ? t.e.operands()[1].value() : 0;
  };
  int64_t scale = 1;
  for (int64_t round = 0; round < kRounds; ++round) {
    const Sum sum = to_sum(e);
    int64_t by = 1;
    bool any = false;
    for (const Term& t : sum.terms) {
      const int64_t b = divisor(t);
      if (std::abs(t.coef) > kLargest || b < 0 || b > kLargest) return false;
      if (b == 0) continue;
      any = true;
      by = std::lcm(by, b / gcd_int(b, t.coef));
      if (by > kLargest) return false;
    }
    if (!any || (scale *= by) > kLargest || std::abs(sum.constant) > kLargest) return false;
    Expr out = sum.constant * by;
    for (const Term& t : sum.terms) {
      const int64_t b = std::max<int64_t>(divisor(t), 1);
      const Expr x = divisor(t) == 0 ? t.e : t.e.operands()[0];
      out += Expr(t.coef * by / b) * (t.coef > 0 ? x - Expr(b - 1) : x);
    }
    e = lower_bound(out);
    if (e.range().lo > scale * (least - 1)) return true;
  }
  return false;
}

// Whether e is nowhere less than `least`.
bool at_least(Expr e, int64_t least, bool quickly = false) {
  if (e.range().lo >= least) return true;
  if (e.is_const() || e.range().lo != -kInf || !Interner::get().any_sizes() || !depends_on_sizes(e)) return false;
  e = lower_bound(e);
  return e.range().lo >= least || (!quickly && at_least_by_ends_of_quotients(e, least));
}

}  // namespace

Expr var_below(std::string_view name, Expr extent) { return Interner::get().variable_below(name, extent); }
Expr extent_of(Expr variable) {
  if (const Node* n = variable.node()->extent) return Interner::wrap(n);
  return Expr(add_checked(variable.range().hi, 1));
}
std::optional<Expr> least_over_loops(Expr e) {
  if (!loops_over_sizes(e)) return e;
  e = at_ends(e, false);
  return loops_over_sizes(e) ? std::nullopt : std::optional(e);
}

bool proven_eq(Expr a, Expr b) {
  if (a == b) return true;
  if (somewhere_apart(a, b)) return false;
  Range r = (a - b).range();
  return r.lo == 0 && r.hi == 0;
}
bool proven_ne(Expr a, Expr b) {
  if (a == b || somewhere_equal(a, b)) return false;
  Expr d = a - b;
  if (at_least(d, 1) || d.range().hi < 0 || at_least(-d, 1)) return true;
  // every coefficient is a multiple of g and the constant is not
  Sum s = to_sum(d);
  int64_t g = 0;
  for (const Term& t : s.terms) g = gcd_int(g, t.coef);
  return g > 1 && s.constant % g != 0;
}
bool proven_lt(Expr a, Expr b) { return !somewhere_not_below(a, b) && at_least(b - a, 1); }
bool proven_le(Expr a, Expr b) { return a == b || (!somewhere_above(a, b) && at_least(b - a, 0)); }
bool quickly_proven_le(Expr a, Expr b) { return a == b || (!somewhere_above(a, b) && at_least(b - a, 0, true)); }
bool may_share_variables(Expr a, Expr b) { return (a.node()->variables & b.node()->variables) != 0; }

namespace {
Expr rebuilt(Expr e, const std::vector<Expr>& ops) {
  switch (e.kind()) {
    case Kind::kAdd: {
      Sum s;
      for (Expr o : ops) add_into(s, o, 1);
      return from_sum(std::move(s));
    }
    case Kind::kMul:
      return product(ops);
    case Kind::kFloorDiv:
      return floordiv(ops[0], ops[1]);
    case Kind::kMod:
      return mod(ops[0], ops[1]);
    case Kind::kMin:
    case Kind::kMax: {
      Expr r = ops[0];
      for (size_t i = 1; i < ops.size(); ++i) r = extremum(e.kind(), r, ops[i]);
      return r;
    }
    case Kind::kConst:
    case Kind::kVar:
      break;
  }
  return e;
}

Expr substituted(Expr e, const Bindings& bindings, bool parts) {
  if (e.is_const()) return e;
  if (e.kind() == Kind::kVar) return bindings(e).value_or(e);
  std::vector<Expr> ops(e.operands().begin(), e.operands().end());
  bool changed = false;
  for (Expr& o : ops) {
    Expr n = substituted(o, bindings, parts);
    changed |= !(n == o);
    o = n;
  }
  const Expr out = changed ? rebuilt(e, ops) : e;
  return parts && (is_part(out) || out.kind() == Kind::kMul) ? bindings(out).value_or(out) : out;
}
}  // namespace

Expr substitute(Expr e, const Bindings& bindings) { return substituted(e, bindings, false); }
Expr substitute_parts(Expr e, const Bindings& bindings) { return substituted(e, bindings, true); }

int64_t evaluate(Expr e, const std::function<int64_t(Expr)>& value) {
  auto fold = [&](auto&& combine) {
    int64_t r = evaluate(e.operands()[0], value);
    for (Expr o : e.operands().subspan(1)) r = combine(r, evaluate(o, value));
    return r;
  };
  switch (e.kind()) {
    case Kind::kConst:
      return e.value();
    case Kind::kVar:
      return value(e);
    case Kind::kAdd:
      return fold(add_checked);
    case Kind::kMul:
      return fold(mul_checked);
    case Kind::kFloorDiv:
      return fold(floordiv_int);
    case Kind::kMod:
      return fold(mod_int);
    case Kind::kMin:
      return fold([](int64_t a, int64_t b) { return std::min(a, b); });
    case Kind::kMax:
      return fold([](int64_t a, int64_t b) { return std::max(a, b); });
  }
  return 0;
}

void collect_vars(Expr e, std::vector<Expr>& out) {
  if (e.kind() == Kind::kVar && std::find(out.begin(), out.end(), e) == out.end()) out.push_back(e);
  for (Expr o : e.operands()) collect_vars(o, out);
}

namespace {
bool mentions(Expr e, Expr v) {
  if (e == v) return true;
  if ((e.node()->variables & v.node()->variables) != v.node()->variables) return false;
  for (Expr o : e.operands())
    if (mentions(o, v)) return true;
  return false;
}
}  // namespace

std::optional<Expr> coefficient(Expr e, Expr v) {
  if (!mentions(e, v)) return Expr(0);
  if (e == v) return Expr(1);
  if (e.kind() == Kind::kAdd) {
    Expr total(0);
    for (Expr t : e.operands()) {
      auto c = coefficient(t, v);
      if (!c) return std::nullopt;
      total += *c;
    }
    return total;
  }
  if (e.kind() == Kind::kMul) {
    Expr rest(1);
    bool found = false;
    for (Expr f : e.operands()) {
      if (f == v && !found) {
        found = true;
      } else if (mentions(f, v)) {
        return std::nullopt;
      } else {
        rest *= f;
      }
    }
    if (found) return rest;
  }
  return std::nullopt;
}

Expr product(std::span<const Expr> factors) {
  Expr r(1);
  for (Expr f : factors) r = r * f;
  return r;
}

std::optional<Expr> find_variable_for_parser(std::string_view name) {
  if (auto known = Interner::get().find_variable(name)) return known;
  if (auto k = size_symbol_of_name(name)) return size_symbol(*k);
  return std::nullopt;
}

}  // namespace flashover::sym
