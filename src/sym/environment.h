// What a trace learns of the sizes of its inputs: symbols, the numbers they stand for now, and what was asked of them.
//
//   In        symbols with the sizes of this call; questions about expressions over them
//   Out       answers: what is known for all sizes, else what is so for the sizes of this call, which becomes a guard
//   Promises  a call whose sizes satisfy guards(), and whose inputs have the canonical() types, gets the same answer to
//             every question; the same questions in the same order give the same guards
//   Declines  nothing
// An equality that can be solved for a symbol is no guard: the symbol stands for the other side from then on, and the
// types of the inputs say so.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sym/sym.h"

namespace flashover::sym {

// a < b and a <= b; the others are these with their sides exchanged.
enum class Relation : uint8_t { kEqual, kNotEqual, kLess, kLessEqual };
bool satisfied(Relation r, int64_t a, int64_t b);

struct SizeGuard {
  Relation relation;
  Expr a, b;
  bool operator==(const SizeGuard&) const = default;
};
std::string str(const SizeGuard& guard);  // "s0 <= 4*s1"

class Environment {
 public:
  Environment() = default;
  // Answers by these facts, and false where they do not tell: nothing is learned any more.
  static Environment assuming(std::vector<SizeGuard> facts);
  Expr add(int64_t now);  // the next symbol, for a size (size_symbol's range holds for it)
  bool empty() const { return now_.empty(); }
  bool assumes() const { return assumes_; }
  int64_t now(Expr e) const;     // in this call
  Expr canonical(Expr e) const;  // by the equalities that were found
  bool holds(Relation r, Expr a, Expr b);
  int64_t specialize(Expr e);  // its value now, which is a guard from now on
  std::vector<SizeGuard> guards() const;

 private:
  std::optional<bool> known(Relation r, Expr a, Expr b) const;
  bool solve(Expr difference);

  std::vector<int64_t> now_;               // by symbol
  std::unordered_map<Expr, Expr> solved_;  // symbols that stand for something else; canonical
  std::vector<SizeGuard> guards_;
  bool assumes_ = false;
};

// While it lives, on its thread, known_eq and its kin (sym.h) ask the environment what they cannot prove.
class AskScope {
 public:
  explicit AskScope(Environment* environment);
  ~AskScope();
  AskScope(const AskScope&) = delete;

 private:
  Environment* before_;
};

// The number that e is: a constant, or in a trace the one of this call, which is a guard then. nullopt: not to be known.
std::optional<int64_t> number_of(Expr e);

// While it lives, on its thread, known_eq and its kin prove by these facts, too.
class AssumeScope {
 public:
  explicit AssumeScope(std::vector<SizeGuard> facts)
      : environment_(Environment::assuming(std::move(facts))), scope_(&environment_) {}

 private:
  Environment environment_;
  AskScope scope_;
};

}  // namespace flashover::sym
