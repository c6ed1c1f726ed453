// An expression that is built of a size by sums, and by quotients and remainders with numbers as divisors, is a line and
// something that repeats: e(s + period) = e(s) + rise. So one period tells of all sizes. With minima and maxima of
// growing parts it grows, and halving finds where it passes one.
#include "sym/rises.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace flashover::sym {
namespace {

constexpr int64_t kMostLooked = 4096;            // sizes that are looked at one by one
constexpr int64_t kMostSize = int64_t{1} << 40;  // that is looked at where the expression grows
constexpr size_t kMostRises = 8;

// Whether it is nowhere less for a larger number in the place of its variables.
bool grows(Expr e) {
  const auto parts = e.operands();
  switch (e.kind()) {
    case Kind::kConst:
    case Kind::kVar:
      return true;
    case Kind::kAdd:
    case Kind::kMin:
    case Kind::kMax:
      return std::ranges::all_of(parts, grows);
    case Kind::kMul:
      return parts.size() == 2 && parts[0].is_const() && parts[0].value() > 0 && grows(parts[1]);
    case Kind::kFloorDiv:
      return parts[1].is_const() && parts[1].value() > 0 && grows(parts[0]);
    case Kind::kMod:
      return false;
  }
  return false;
}

std::optional<int64_t> period_of(Expr e) {
  const auto parts = e.operands();
  int64_t period = 1;
  switch (e.kind()) {
    case Kind::kConst:
    case Kind::kVar:
      return 1;
    case Kind::kMin:
    case Kind::kMax:
      return std::nullopt;
    case Kind::kMul:
      if (parts.size() != 2 || !parts[0].is_const()) return std::nullopt;
      return period_of(parts[1]);
    case Kind::kAdd:
      for (Expr part : parts) {
        const std::optional<int64_t> of_part = period_of(part);
        if (!of_part) return std::nullopt;
        period = std::lcm(period, *of_part);
        if (period > kMostLooked) return std::nullopt;
      }
      return period;
    case Kind::kFloorDiv:
    case Kind::kMod:
      break;
  }
  const std::optional<int64_t> inner = period_of(parts[0]);
  if (!inner || !parts[1].is_const() || parts[1].value() <= 0 || parts[1].value() > kMostLooked / *inner)
    return std::nullopt;
  return *inner * parts[1].value();
}

// Zero, one, more: the sizes where it becomes another of them.
class Walk {
 public:
  Walk(Expr e, int64_t least) : e_(e), least_(least) {}
  int64_t at(int64_t size) const {
    return evaluate(e_, [size](Expr) { return size; });
  }

  std::optional<std::vector<int64_t>> by_period(int64_t period) const {
    int64_t lowest = at(least_);
    const int64_t rise = at(least_ + period) - lowest;
    if (rise <= 0) return std::nullopt;
    for (int64_t s = least_ + 1; s < least_ + period; ++s) lowest = std::min(lowest, at(s));
    if (lowest < -kMostLooked) return std::nullopt;
    const int64_t periods = lowest > 1 ? 0 : (1 - lowest) / rise + 1;
    if (periods > kMostLooked / period) return std::nullopt;
    std::vector<int64_t> out;
    int64_t before = kind(least_);
    for (int64_t s = least_ + 1; s <= least_ + periods * period; ++s) {
      const int64_t now = kind(s);
      if (now == std::exchange(before, now)) continue;
      if (out.size() == kMostRises) return std::nullopt;
      out.push_back(s);
    }
    return out;
  }

  std::optional<std::vector<int64_t>> by_halving() const {
    std::vector<int64_t> out;
    for (const int64_t most : {0, 1}) {
      if (at(least_) > most) continue;
      int64_t below = least_, from = 2 * std::max<int64_t>(below, 1);
      while (from < kMostSize && at(from) <= most) below = from, from *= 2;
      if (at(from) <= most) return std::nullopt;
      while (from - below > 1) {
        const int64_t middle = below + (from - below) / 2;
        (at(middle) > most ? from : below) = middle;
      }
      if (out.empty() || out.back() != from) out.push_back(from);
    }
    return out;
  }

 private:
  int64_t kind(int64_t size) const { return std::clamp<int64_t>(at(size), 0, 2); }

  Expr e_;
  int64_t least_;
};

}  // namespace

std::optional<std::vector<int64_t>> rises_of(Expr e, Expr symbol, int64_t least) {
  std::vector<Expr> variables;
  collect_vars(e, variables);
  if (variables != std::vector<Expr>{symbol}) return std::nullopt;
  const Walk walk(e, least);
  if (grows(e)) return walk.by_halving();
  const std::optional<int64_t> period = period_of(e);
  return period ? walk.by_period(*period) : std::nullopt;
}

}  // namespace flashover::sym
