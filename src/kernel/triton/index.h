// Index arithmetic as Triton text: names for loop variables, and the expressions over them.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "loops/loops.h"

namespace flashover::kernel::triton {

// The axes of the tile that a value differs along: outer points (x, and y of a tile of two outer axes), points of a row
// (r).
using Axes = uint8_t;
constexpr Axes kX = 1, kR = 2, kY = 4;

struct Name {
  std::string text;
  Axes axes = 0;
};

// Loops whose coordinates come out of one linear index, and a variable for that index.
struct LinearizedLoops {
  std::vector<loops::Loop> loops;
  sym::Expr whole;
};

struct Coordinates {
  std::map<const sym::Node*, Name> names;
  std::vector<LinearizedLoops> linearized;
  // For random numbers: names of each fourth coordinate along the last axis. text() uses them while `by_fours`.
  std::map<const sym::Node*, std::string> fours;
  bool by_fours = false;
};

// Does every subexpression fit in 32 bits?
bool fits_int32(sym::Expr e);
// Does index arithmetic of the kernel need 64 bits? `points`: the loops over all points of all programs.
bool needs_int64(const loops::Kernel& k, const std::vector<loops::Loop>& points);
// Whether it has a variable that k_indirect defines.
bool has_indirect(sym::Expr e);

Axes axes_of(const Coordinates& c, sym::Expr e);
std::string text(const Coordinates& c, sym::Expr e);
// The same, in parentheses where it stands beside + or *; behind a division.
std::string atom(const Coordinates& c, sym::Expr e);
std::string divisor(const Coordinates& c, sym::Expr e);
// text() of an address: where coordinates only make the linear index that they came from again, it is that index.
std::string index(const Coordinates& c, sym::Expr e);
sym::Expr relinearized(const Coordinates& c, sym::Expr e);
// From now on `name` is the linear index that the coordinates of `loops` come from. `letter`: a digit that tells such
// apart; `fours`: every fourth index has a name too (name + "q").
void linearize(Coordinates& c, const std::vector<loops::Loop>& loops, char letter, const std::string& name, Axes axes,
               bool fours = false);

}  // namespace flashover::kernel::triton
