// Integer expressions over sizes and loop indices.
//
// Every size, stride, offset and index in Flashover is a sym::Expr, also when it is a plain number, so that dynamic
// shapes are a matter of values and not of types. Expressions are hash-consed: equal canonical forms are the same node,
// so
// `==` is a pointer compare and holding an Expr is holding a pointer. Sums are kept affine (sorted terms with integer
// coefficients, constant last); floor-div, mod, min and max are simplified with the ranges of their variables.
//
//   In        integers, named variables with ranges, + - * floordiv mod min max
//   Out       canonical expressions; constant folding is immediate
//   Promises  e1 == e2 implies equal values for all variable values in range; printing parses back to the same node;
//             thread safe; nodes live until the process ends
//   Declines  nothing; overflow of int64 in constant folding is a CHECK
//   Sample    "4*s0 + i1 mod 7 + 3"
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flashover::sym {

enum class Kind : uint8_t { kConst, kVar, kAdd, kMul, kFloorDiv, kMod, kMin, kMax };

// Inclusive bounds; kInf / -kInf when unknown.
struct Range {
  static constexpr int64_t kInf = INT64_MAX;
  int64_t lo = -kInf;
  int64_t hi = kInf;
  bool operator==(const Range&) const = default;
};

struct Node;

class Expr {
 public:
  Expr() : Expr(int64_t{0}) {}
  Expr(int64_t constant);  // NOLINT: implicit on purpose, sizes are written as numbers
  Expr(int constant) : Expr(int64_t{constant}) {}

  Kind kind() const;
  bool is_const() const { return kind() == Kind::kConst; }
  bool is_const(int64_t c) const { return is_const() && value() == c; }
  int64_t value() const;  // CHECKs is_const(); throws Declined where the value depends on a size symbol
  std::optional<int64_t> as_const() const;
  int64_t hint() const;           // value with every variable at its hint
  Range range() const;            // bounds from the ranges of the variables
  std::string_view name() const;  // of a variable
  std::span<const Expr> operands()
      const;  // of add (terms), mul (coefficient may be operands()[0] const), div, mod, min, max

  bool operator==(Expr other) const { return node_ == other.node_; }
  const Node* node() const { return node_; }
  std::string str() const;

 private:
  explicit Expr(const Node* node) : node_(node) {}
  friend struct Interner;
  const Node* node_;
};

// A variable is identified by its name; asking again with the same name returns the same node (ranges must agree).
// hint is the value seen when tracing (sizes) or anything in range (loop indices).
Expr var(std::string_view name, Range range, int64_t hint);

// Symbol k of the sizes of a graph's inputs: variable "s<k>", the same node in every program. parse() knows these names.
// It may be 0: what an expression divides by is asked not to be. The hint is one number for every program, for cost
// models only: no fact, kernel or plan may depend on it. 0 <= k < 2 * kMaxSizeSymbols.
constexpr int kMaxSizeSymbols = 4096;
constexpr Range kSizeSymbolRange{0, Range::kInf};
// Type rules look at sizes of 0 and 1. They are told of symbols as of sizes from here on (PresumeScope), and asked again
// for those that are less (trace/small_sizes.cpp).
constexpr int64_t kLeastPresumed = 2;
// Symbols from kMaxSizeSymbols on are sizes that follow from data ("u<k>"), of which nothing is presumed.
Expr size_symbol(int k);
inline Expr data_size_symbol(int k) { return size_symbol(kMaxSizeSymbols + k); }
std::optional<int> size_symbol_index(Expr e);  // k of size_symbol(k); nullopt for any other expression
std::optional<int> size_symbol_of_name(std::string_view name);
bool has_size_symbol(Expr e);
bool has_data_size(Expr e);
// Before the first size symbol of a process: what tests compare plans under.
void set_size_hint_for_test(int64_t hint);

Expr operator+(Expr a, Expr b);
Expr operator-(Expr a, Expr b);
Expr operator-(Expr a);
Expr operator*(Expr a, Expr b);
// What divides by a size stands only where that is not 0: s0*s1 // s0 is s1.
Expr floordiv(Expr a, Expr b);  // rounds towards minus infinity; b != 0
Expr mod(Expr a, Expr b);       // sign of b, as Python's
Expr min(Expr a, Expr b);
Expr max(Expr a, Expr b);
inline Expr ceildiv(Expr a, Expr b) { return floordiv(a + b - Expr(1), b); }
inline Expr& operator+=(Expr& a, Expr b) { return a = a + b; }
inline Expr& operator*=(Expr& a, Expr b) { return a = a * b; }

// Provable facts (false = not proven, not "disproven").
bool proven_eq(Expr a, Expr b);
bool proven_ne(Expr a, Expr b);
bool proven_lt(Expr a, Expr b);
bool proven_le(Expr a, Expr b);
// The same, without what takes long to find: for who asks it of many a and b.
bool quickly_proven_le(Expr a, Expr b);
bool may_share_variables(Expr a, Expr b);  // false: they do not
// The same; but while a trace asks (AskScope, environment.h) these give what is so for the sizes of its call.
bool known_eq(Expr a, Expr b);
bool known_ne(Expr a, Expr b);
bool known_lt(Expr a, Expr b);
bool known_le(Expr a, Expr b);
bool known_divisible(Expr a, int64_t by);

using Bindings = std::function<std::optional<Expr>(Expr variable)>;
Expr substitute(Expr e, const Bindings& bindings);  // re-simplifies
// The same; products, quotients, remainders and the like, of parts that are replaced already, are asked for, too.
Expr substitute_parts(Expr e, const Bindings& bindings);
int64_t evaluate(Expr e, const std::function<int64_t(Expr variable)>& value);
void collect_vars(Expr e, std::vector<Expr>& out);  // unique, in order of first appearance
// d e / d v if e is affine in v with a constant or symbol-only coefficient: the stride of v; nullopt otherwise.
std::optional<Expr> coefficient(Expr e, Expr v);

// Neither a number, nor a variable, nor a sum or product.
inline bool is_part(Expr e) {
  const Kind k = e.kind();
  return k == Kind::kFloorDiv || k == Kind::kMod || k == Kind::kMin || k == Kind::kMax;
}

Expr parse(std::string_view text);  // variables must exist, but size symbols; throws UserError with the column
Expr product(std::span<const Expr> factors);

}  // namespace flashover::sym

template <>
struct std::hash<flashover::sym::Expr> {
  size_t operator()(flashover::sym::Expr e) const noexcept { return std::hash<const void*>()(e.node()); }
};
