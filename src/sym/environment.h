// What a trace learns of the sizes of its inputs: symbols, the numbers they stand for now, and what was asked of them.
//
//   In        symbols with the sizes of this call; questions about expressions over them
//   Out       answers: what is known for all sizes, else what is so for the sizes of this call, which becomes a guard
//   Promises  a call whose sizes satisfy guards(), and whose inputs have the canonical() types, gets the same answer to
//             every question; the same questions in the same order give the same guards
//   Declines  nothing
// Sizes that follow from data have no number in a trace. A question about them that is not known for all sizes gets the
// answer of the usual case, which the program that is compiled checks in each call (`assume`); where a number is needed
// the trace cannot go on (`refuse`).
// An equality that can be solved for a symbol is no guard: the symbol stands for the other side from then on, and the
// types of the inputs say so. A quotient or the like that a guard finds to be a number stands for it, too.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "sym/sym.h"

namespace flashover::sym {

class PreparedFact;  // implied.h

// a < b and a <= b; the others are these with their sides exchanged.
enum class Relation : uint8_t { kEqual, kNotEqual, kLess, kLessEqual };
bool satisfied(Relation r, int64_t a, int64_t b);

struct SizeGuard {
  Relation relation;
  Expr a, b;
  bool operator==(const SizeGuard&) const = default;
};
SizeGuard negated(const SizeGuard& guard);  // what holds where it does not
std::string str(const SizeGuard& guard);    // "s0 <= 4*s1"

// A guard, and the line of the program that asked for it; empty: not known.
struct AskedGuard {
  SizeGuard guard;
  std::string where;
};

// What the user said of a size (torch._dynamo.mark_dynamic and its kin).
struct Promise {
  enum class Kind : uint8_t {
    kNone,
    kDynamic,   // the program takes it for no single number
    kUnbacked,  // the same, but for what follows from the sizes that it meets
  } kind = Kind::kNone;
  bool bounded = false;  // the program treats all sizes from `least` to `most` alike; there are no others
  int64_t least = 0, most = Range::kInf;
};

// A symbol that is one number after all.
enum class Fixing : uint8_t {
  kCompared,  // it was found equal to it
  kRead,      // the program asked for its value
  kOperator,  // an operator did, in our hands: another compiler may do without
};
struct Fixed {
  int symbol = -1;
  int64_t value = 0;
  Fixing how = Fixing::kCompared;
  std::string where;  // the line of the program; may be empty
};
struct BrokenPromise {
  Fixed what;
  std::optional<SizeGuard> guard;  // it rules out a size within the bounds, `what.value`; none: that is its only size
};

class Environment {
 public:
  Environment();
  ~Environment();
  Environment(Environment&&) noexcept;
  // Where a symbol grows to these numbers, sizes of one element that operators make of it get more. By index.
  using Steps = std::map<int, std::set<int64_t>>;
  // Answers by these facts, and false where they do not tell: nothing is learned any more.
  static Environment assuming(std::vector<SizeGuard> facts, Steps steps = {});
  Expr add(int64_t now, const Promise& promise = {});  // the next symbol, for a size (size_symbol's range holds for it)
  Expr add_data_size();                                // the next symbol of a size that follows from data
  void know(SizeGuard fact);                           // that holds in each call
  // Of such sizes: answers so, and the program that is compiled checks it. Where calls were found to be otherwise
  // (`refuted`), the contrary.
  bool expect(Relation r, Expr a, Expr b, bool answer);
  // The answer of the usual case: sizes that follow from data are below others.
  static bool usual(Relation r, Expr a, Expr b);
  bool empty() const { return now_.empty() && data_sizes_ == 0; }
  bool assumes() const { return assumes_; }
  int64_t now(Expr e) const;     // in this call
  Expr canonical(Expr e) const;  // by the equalities that were found
  bool holds(Relation r, Expr a, Expr b);
  // As follows(), or that the contrary does. Where that rests on such numbers being sizes, which have no sign, they are
  // relied_on() from now on.
  std::optional<bool> known_of_data(Relation r, Expr a, Expr b) const;
  const std::vector<Expr>& relied_on() const { return relied_on_; }
  bool follows(Relation r, Expr a, Expr b) const;              // from what is known already; nothing is learned
  int64_t specialize(Expr e, Fixing how = Fixing::kOperator);  // its value now, which is a guard from now on
  std::optional<int64_t> stated(Expr e) const;                 // the number that a fact says it is
  // A size that an operator made. It has elements, and more than one wherever all symbols are kLeastPresumed or more;
  // else it is guarded to be so, or is its value now. (`opens`: or it is presumed to be so.)
  Expr settled(Expr e);
  const Steps& steps() const { return steps_; }
  int64_t least(Expr e) const { return raised(e).range().lo; }  // that the guards leave of it, as far as is seen
  const std::vector<Expr>& opened() const { return opened_; }   // what is presumed to have more than one element
  void require(SizeGuard guard, std::string where) { guards_.push_back({std::move(guard), std::move(where)}); }
  std::vector<SizeGuard> guards() const;
  std::vector<AskedGuard> asked() const;  // the same, with their lines
  std::vector<SizeGuard> facts() const;   // guards(), and what is known of sizes that follow from data
  const std::vector<Fixed>& fixed() const { return fixed_; }
  std::string where_equal(int symbol) const;  // the line that made it stand for something else
  std::vector<BrokenPromise> broken() const;
  const Promise& promise(int symbol) const { return promises_[static_cast<size_t>(symbol)]; }
  size_t count() const { return now_.size(); }
  int data_sizes() const { return data_sizes_; }

  std::function<std::string()> line;  // of the program, where the trace is now; may be unset
  // Where an operator makes one element of a symbol, that is recorded as for more. Whoever records looks whether it is
  // the same, and asks for more where it is not (trace/small_sizes.cpp).
  bool opens = false;
  // A check of it, with its words, becomes part of the program.
  std::function<void(const SizeGuard&, std::string)> assume;
  std::set<std::string> refuted;                   // facts, in such words, that are not so
  std::function<void(const std::string&)> refuse;  // throws; unset: Declined is thrown

 private:
  struct Learned;  // what follows from the guards
  const Learned& learned() const;

  std::string here() const { return line ? line() : ""; }
  std::optional<bool> known(Relation r, Expr a, Expr b) const;
  std::optional<bool> found_known(Relation r, Expr a, Expr b) const;
  std::optional<bool> by_facts(Relation r, Expr a, Expr b, size_t first) const;
  Expr raised(Expr e) const;
  std::optional<bool> known_of_multiples(Relation r, Expr a, Expr b) const;
  bool holds_by_divisors(Expr a, Expr b);
  bool solve(Expr difference);
  void find_number(const SizeGuard& fact);
  void find_order(const SizeGuard& fact);
  void take_ones(Expr factors);
  void take_fraction(Expr part, int64_t by, Expr of);
  Expr by_symbols(Expr e) const;
  bool is_large(Expr e) const;  // where all symbols are
  bool open(Expr e);
  bool has_steps(Expr e) const;  // one of its symbols
  Expr presumed(Expr e) const;
  bool holds_usually(Relation r, Expr a, Expr b);
  bool cannot_be(Expr difference) const;
  const std::vector<AskedGuard>& canonical_guards(bool of_data) const;

  std::vector<int64_t> now_;               // by symbol
  std::unordered_map<Expr, Expr> solved_;  // symbols that stand for something else; canonical
  std::unordered_map<Expr, std::string> solved_at_;
  std::unordered_map<Expr, Expr> numbers_;  // quotients and the like, by what a guard says they are; canonical
  size_t replaced_ = 0;                     // what was put into the two, ever
  std::vector<AskedGuard> guards_;
  std::vector<Promise> promises_;  // by symbol
  size_t bounds_ = 0;              // so many guards are of promises
  int data_sizes_ = 0;
  mutable std::vector<Expr> relied_on_;  // symbols of data
  std::vector<Fixed> fixed_;
  Fixing how_ = Fixing::kCompared;  // of what is fixed now
  Steps steps_;
  std::vector<Expr> opened_;
  bool assumes_ = false;
  mutable std::unique_ptr<Learned> learned_;
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

// While it lives, on its thread, what known_eq and its kin cannot prove they take for so where it is for all sizes from
// kLeastPresumed on; nothing is asked for that. For type rules: whether they say the same of smaller sizes is looked at
// once for a whole trace (trace/small_sizes.cpp).
class PresumeScope {
 public:
  PresumeScope();
  ~PresumeScope();
  PresumeScope(const PresumeScope&) = delete;

 private:
  bool before_;
};

// While it lives, on its thread, questions are about layouts: of tensors with one element or none, along some dimension,
// any will do. (Sizes that follow from data are taken to be larger, without a check.)
class LayoutScope {
 public:
  LayoutScope();
  ~LayoutScope();
  LayoutScope(const LayoutScope&) = delete;

 private:
  bool before_;
};

// Whether it is known for all sizes that the trace, or what assumes facts, still counts on; nothing is asked.
bool follows(Relation r, Expr a, Expr b);

// The number that e is: a constant, or in a trace the one of this call, which is a guard then. nullopt: not to be known.
std::optional<int64_t> number_of(Expr e);

// While it lives, on its thread, known_eq and its kin prove by these facts, too.
class AssumeScope {
 public:
  explicit AssumeScope(std::vector<SizeGuard> facts, Environment::Steps steps = {})
      : environment_(Environment::assuming(std::move(facts), std::move(steps))), scope_(&environment_) {}

 private:
  Environment environment_;
  AskScope scope_;
};

}  // namespace flashover::sym
