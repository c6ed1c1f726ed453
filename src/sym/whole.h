// Whole numbers that programs compute of a size through floats, int(0.7 * n) and the like, as expressions.
//
//   In        an expression, and what floats make of each of its values
//   Out       an expression of the same values
//   Promises  the two agree wherever the environment's guards hold: each value below a limit, which is one of them, was
//             tried
//   Declines  nullopt: what no line rounded down goes through, values that are negative or very large in this call
#pragma once
#include <cstdint>
#include <functional>
#include <optional>

#include "sym/environment.h"

namespace flashover::sym {

// (slope * n + start) // by is f(n) for all n from `least` to `most`.
struct StepLine {
  int64_t slope = 0, start = 0, by = 1;
};
using WholeFunction = std::function<double(double)>;  // its values are whole, or no numbers at all
std::optional<StepLine> line_through(const WholeFunction& f, int64_t least, int64_t most);

// One that serves sizes up to `most`, this one among them.
struct Fit {
  StepLine line;
  int64_t most = 0;
};
std::optional<Fit> fit_around(int64_t size, const WholeFunction& f);
std::optional<Expr> whole_of(Environment& sizes, Expr e, const WholeFunction& f);

}  // namespace flashover::sym
