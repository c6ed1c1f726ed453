// Long division of polynomials in the parts of two sums, with numbers for coefficients. Parts that are neither sums nor
// products (a size, a quotient, a minimum) are its variables.
#include "sym/quotient.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "sym/terms.h"

namespace flashover::sym {
namespace {

constexpr size_t kMostTerms = 64;
constexpr int64_t kMostCoefficient = int64_t{1} << 31;  // two of them multiply without overflow

using Powers = std::vector<int32_t>;  // by variable
struct LowerDegree {
  bool operator()(const Powers& a, const Powers& b) const {
    const int32_t x = std::accumulate(a.begin(), a.end(), 0), y = std::accumulate(b.begin(), b.end(), 0);
    return x != y ? x < y : a < b;
  }
};
using Polynomial = std::map<Powers, int64_t, LowerDegree>;  // coefficients, none of them 0

std::vector<Expr> variables_of(std::initializer_list<Expr> sums) {
  std::vector<Expr> out;
  for (const Expr& sum : sums)
    for (const Expr& term : terms_of(sum))
      for (const Expr& factor : factors_of(term))
        if (!factor.is_const() && std::ranges::find(out, factor) == out.end()) out.push_back(factor);
  return out;
}

Polynomial polynomial_of(const Expr& e, const std::vector<Expr>& variables) {
  Polynomial out;
  for (const Expr& term : terms_of(e)) {
    Powers powers(variables.size(), 0);
    int64_t coefficient = 1;
    for (const Expr& factor : factors_of(term)) {
      if (factor.is_const())
        coefficient = factor.value();
      else
        ++powers[static_cast<size_t>(std::ranges::find(variables, factor) - variables.begin())];
    }
    if (coefficient != 0) out[std::move(powers)] = coefficient;
  }
  return out;
}

bool is_small(const Polynomial& p) {
  return p.size() <= kMostTerms &&
         std::ranges::all_of(p, [](const auto& t) { return std::abs(t.second) < kMostCoefficient; });
}

// a / b of one term each.
std::optional<std::pair<Powers, int64_t>> divided(const std::pair<const Powers, int64_t>& a,
                                                  const std::pair<const Powers, int64_t>& b) {
  if (a.second % b.second != 0) return std::nullopt;
  Powers powers = a.first;
  for (size_t i = 0; i < powers.size(); ++i)
    if ((powers[i] -= b.first[i]) < 0) return std::nullopt;
  return std::pair(std::move(powers), a.second / b.second);
}

void subtract(Polynomial& from, const std::pair<Powers, int64_t>& term, const Polynomial& times) {
  for (const auto& [powers, coefficient] : times) {
    Powers product = powers;
    for (size_t i = 0; i < product.size(); ++i) product[i] += term.first[i];
    const auto at = from.try_emplace(std::move(product), 0).first;
    if ((at->second -= term.second * coefficient) == 0) from.erase(at);
  }
}

Expr product_of(const std::pair<Powers, int64_t>& term, const std::vector<Expr>& variables) {
  Expr product = term.second;
  for (size_t i = 0; i < variables.size(); ++i)
    for (int32_t n = 0; n < term.first[i]; ++n) product *= variables[i];
  return product;
}

// a is so many times b and a rest, each of whose terms is no multiple of the highest of b. nullopt: too large, or there
// is a rest and it is not wanted.
std::optional<Division> divide(Expr a, Expr b, bool with_rest) {
  const std::vector<Expr> variables = variables_of({a, b});
  Polynomial left = polynomial_of(a, variables);
  const Polynomial by = polynomial_of(b, variables);
  if (by.empty() || !is_small(by)) return std::nullopt;
  Division out;
  while (!left.empty()) {  // each step takes the highest term away
    if (!is_small(left)) return std::nullopt;
    const auto highest = std::prev(left.end());
    if (const auto term = divided(*highest, *by.rbegin())) {
      out.quotient += product_of(*term, variables);
      subtract(left, *term, by);
      continue;
    }
    if (!with_rest) return std::nullopt;
    out.rest += product_of(*highest, variables);
    left.erase(highest);
  }
  return out;
}

}  // namespace

std::optional<Division> divide_by_sum(Expr a, Expr b) {
  if (a.kind() != Kind::kAdd || b.kind() != Kind::kAdd) return std::nullopt;
  std::optional<Division> out = divide(a, b, true);
  return out && !out->quotient.is_const(0) ? out : std::nullopt;
}

std::optional<Expr> whole_quotient(Expr a, Expr b) {
  if (a == b) return Expr(1);
  const std::optional<Division> out = divide(a, b, false);
  return out ? std::optional(out->quotient) : std::nullopt;
}

Expr quotient(Expr a, Expr b) { return whole_quotient(a, b).value_or(floordiv(a, b)); }

}  // namespace flashover::sym
