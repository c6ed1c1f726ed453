// Slopes are tried from simple to exact fractions; where a start fits every value, the line is it.
#include "sym/whole.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace flashover::sym {
namespace {

constexpr int64_t kMostBy = int64_t{1} << 20;
constexpr double kMostValue = 1e12;

// A start with which the line goes through every value.
std::optional<int64_t> start_of(const std::vector<int64_t>& values, int64_t least, int64_t slope, int64_t by) {
  int64_t low = INT64_MIN, high = INT64_MAX;
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t off = by * values[i] - slope * (least + static_cast<int64_t>(i));
    low = std::max(low, off);
    high = std::min(high, off + by - 1);
    if (low > high) return std::nullopt;
  }
  return low <= 0 && 0 <= high ? 0 : low;
}

}  // namespace

std::optional<StepLine> line_through(const WholeFunction& f, int64_t least, int64_t most) {
  std::vector<int64_t> values;
  values.reserve(static_cast<size_t>(most - least + 1));
  for (int64_t n = least; n <= most; ++n) {
    const double v = f(static_cast<double>(n));
    if (!(std::fabs(v) <= kMostValue) || v != std::floor(v)) return std::nullopt;
    values.push_back(static_cast<int64_t>(v));
  }
  // Between two steps: where the first value ends and where the last one begins.
  const auto up = std::ranges::find_if(values, [&](int64_t v) { return v != values.front(); });
  const auto last = std::ranges::find(values, values.back());
  const bool steps = up != values.end() && up < last;
  const double rise = steps ? static_cast<double>(*last - *up) / static_cast<double>(last - up)
                            : static_cast<double>(values.back() - values.front()) / static_cast<double>(most - least);
  // The fractions that are nearest to the slope for their size, by its continued fraction.
  double rest = rise;
  int64_t before = 1, slope = static_cast<int64_t>(std::floor(rise)), before_by = 0, by = 1;
  while (true) {
    for (const int64_t tried : {slope, slope + 1, slope - 1})
      if (const auto start = start_of(values, least, tried, by)) return StepLine{tried, *start, by};
    const double fraction = rest - std::floor(rest);
    if (fraction < 1e-9) return std::nullopt;
    rest = 1 / fraction;
    const auto whole = static_cast<int64_t>(std::floor(rest));
    if (whole > kMostBy / by) return std::nullopt;
    const int64_t next = whole * slope + before, next_by = whole * by + before_by;
    before = slope, before_by = by;
    slope = next, by = next_by;
    if (by > kMostBy) return std::nullopt;
  }
}

std::optional<Fit> fit_around(int64_t size, const WholeFunction& f) {
  constexpr int64_t kFew = int64_t{1} << 14, kMany = int64_t{1} << 20;
  if (size < 0 || size > kMany) return std::nullopt;
  const int64_t most = size <= kFew ? kFew : kMany;
  const auto line = line_through(f, 0, most);
  return line ? std::optional(Fit{*line, most}) : std::nullopt;
}

std::optional<Expr> whole_of(Environment& sizes, Expr e, const WholeFunction& f) {
  const auto fit = fit_around(sizes.now(e), f);
  if (!fit) return std::nullopt;
  sizes.holds(Relation::kLessEqual, Expr(0), e);
  sizes.holds(Relation::kLessEqual, e, Expr(fit->most));
  return floordiv(Expr(fit->line.slope) * e + Expr(fit->line.start), Expr(fit->line.by));
}

}  // namespace flashover::sym
