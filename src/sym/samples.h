// What expressions are at a few fixed places: numbers for their variables, within their ranges. Most questions have the
// answer "not for all", and one place shows it, without the difference of the two sides being made.
//
//   In        an expression; its values at these places are kept with its node
//   Out       whether a relation fails at one of them
//   Promises  "fails" is so: there are numbers for the variables at which the relation does not hold
//   Declines  places where a value overflows, or something divides by 0: they show nothing
#pragma once
#include <array>
#include <cstdint>

#include "sym/sym.h"

namespace flashover::sym {

constexpr size_t kSamples = 6;
constexpr int64_t kNoSample = INT64_MIN;
using Samples = std::array<int64_t, kSamples>;

const Samples& samples(Expr e);

// Some place has a > b, a >= b, a != b, a == b. (a is taken `times` times.)
bool somewhere_above(Expr a, Expr b, int64_t times = 1);
bool somewhere_not_below(Expr a, Expr b);
bool somewhere_apart(Expr a, Expr b);
bool somewhere_equal(Expr a, Expr b);

// a < b where all variables are large: an order of sizes and strides, and no fact.
bool usually_below(Expr a, Expr b);

// For whoever makes nodes.
Samples samples_of_constant(int64_t value);
Samples samples_of_variable(std::string_view name, Range range);
Samples samples_below(const Samples& variable, const Samples& extent);
Samples samples_of_parts(Kind kind, std::span<const Expr> operands);

}  // namespace flashover::sym
