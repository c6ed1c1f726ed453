// What one fact about sizes says of another question.
//
//   In        a fact; a question about the difference of two expressions
//   Out       the answer, where the fact alone gives it
//   Promises  an answer is so wherever the fact is
//   Declines  nullopt: the fact does not tell
// Both are prepared once: each question is put to many facts.
#pragma once
#include <optional>
#include <vector>

#include "sym/environment.h"

namespace flashover::sym {

// A sum that is known to be 0 or more.
struct AtLeastZero {
  Expr e;
  int64_t content = 0;  // what all its terms are multiples of
};

class PreparedFact {
 public:
  explicit PreparedFact(SizeGuard fact);
  const SizeGuard& guard() const { return guard_; }
  Expr difference() const { return difference_; }

 private:
  friend class Question;
  SizeGuard guard_;
  Expr difference_;
  std::vector<AtLeastZero> given_;  // one of an order; two of an equality, both ways; none where sides are apart
};

class Question {
 public:
  Question(Relation r, Expr a, Expr b) : Question(r, a - b) {}
  Question(Relation r, Expr difference);
  std::optional<bool> answer_by(const PreparedFact& fact);

 private:
  // A sum that is asked to be 0 or more, and what is looked at again and again of it.
  struct Factor {
    Expr size;
    std::optional<int64_t> number;  // that stands before it alone
    bool of_a_product = false;
  };
  struct Wanted {
    explicit Wanted(Expr e);
    AtLeastZero sum;
    std::vector<Factor> factors;
  };
  Wanted& wanted(bool strict, bool exchanged);
  static bool says(const AtLeastZero& given, const Wanted& wanted);
  static bool implies(const AtLeastZero& given, const Wanted& wanted);
  bool follows(const PreparedFact& fact, bool strict, bool exchanged);
  std::optional<bool> by_equality(const PreparedFact& fact);

  Relation relation_;
  Expr difference_;
  std::optional<Wanted> wanted_[4];
};

}  // namespace flashover::sym
