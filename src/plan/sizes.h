// A plan with size symbols, and the plan of constant sizes that serves calls of one size.
//
//   In        a plan whose sizes, strides, offsets, arguments and launches are expressions over size symbols, each of
//             which is a size or a stride of some input as it is, or of a result of a step that finds it (a size point)
//   Out       where to read the symbols' values from a call's inputs; the plan with the values in their place; or only
//             the numbers, which is many times cheaper
//   Promises  with_sizes() leaves no symbol; it checks nothing else (verify() of what it returns does)
//   Declines  a symbol that is no input's size or stride, a frozen part that depends on one (Declined)
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace flashover::plan {

// Symbol `symbol` is the size of dimension `dim` of input `input`, or its stride.
struct SizeSource {
  int32_t symbol = 0, input = 0, dim = 0;
  bool stride = false;
};
// Of all symbols that occur but those that size points find, by symbol.
std::vector<SizeSource> size_sources(const Plan& p);

// A step that calls an operator whose result number `result` has the symbol as its size `dim`: what follows is run when
// the size is known.
struct SizePoint {
  size_t step = 0;
  struct Size {
    int32_t symbol = 0, result = 0, dim = 0;
  };
  std::vector<Size> sizes;
};
// In the order of steps. Symbols of inputs are none of theirs.
std::vector<SizePoint> size_points(const Plan& p);
// Throws InternalError where a step depends on a size that a later one finds.
void check_size_points(const Plan& p);
// The symbols that occur in it, ascending.
std::vector<int> size_symbols(const Plan& p);

// Throws Declined where what is computed from parameters has such a size.
void check_frozen_part(const Plan& p);

// values: by entry of `sources` (of which the symbols count). Binaries are left out.
Plan with_sizes(const Plan& p, std::span<const SizeSource> sources, std::span<const int64_t> values);

// A kernel's message "... with size 2*s0", with the number.
std::string with_sizes(std::string error, std::span<const SizeSource> sources, std::span<const int64_t> values);

// Numbers that are expressions over size symbols, in a row. Each expression is evaluated once, however often it occurs.
class NumberTable {
 public:
  uint32_t add(sym::Expr e);  // the place of its number
  std::vector<int64_t> numbers(std::span<const SizeSource> sources, std::span<const int64_t> values) const;
  size_t size() const { return constants_.size(); }

 private:
  struct Open {
    uint32_t place, expression;
  };
  std::vector<int64_t> constants_;  // 0 where there is a symbol
  std::vector<Open> open_;
  std::vector<sym::Expr> expressions_;
  std::unordered_map<sym::Expr, uint32_t> known_;
};

}  // namespace flashover::plan
