// One fact against one question: what it says is so, and it says what is no more than itself, some times.
#include "sym/implied.h"

#include <gtest/gtest.h>

#include <random>

namespace flashover::sym {
namespace {

using enum Relation;

std::optional<bool> answer(SizeGuard fact, Relation r, Expr a, Expr b) {
  return Question(r, a, b).answer_by(PreparedFact(std::move(fact)));
}

TEST(Implied, ByAFactOfAnOrder) {
  const Expr a = size_symbol(0), b = size_symbol(1);
  EXPECT_EQ(answer({kLess, a, b}, kLessEqual, a, b), true);
  EXPECT_EQ(answer({kLess, a, b}, kEqual, a, b), false);
  EXPECT_EQ(answer({kLess, a, b}, kLess, b, a), false);
  EXPECT_EQ(answer({kLessEqual, a, b}, kLess, a, b), std::nullopt);
  EXPECT_EQ(answer({kLessEqual, Expr(4), a}, kLess, Expr(2), a), true);
  EXPECT_EQ(answer({kLessEqual, a, Expr(20)}, kLessEqual, 4 * a, Expr(80)), true);
  EXPECT_EQ(answer({kLessEqual, a, Expr(20)}, kLessEqual, 4 * a, Expr(79)), std::nullopt);
  EXPECT_EQ(answer({kLessEqual, Expr(3), a}, kLessEqual, 3 * b, a * b), true) << "as often as b says";
}

TEST(Implied, ByAnEqualityOrADifference) {
  const Expr a = size_symbol(0), b = size_symbol(1);
  EXPECT_EQ(answer({kEqual, a, b + Expr(1)}, kLess, b, a), std::nullopt) << "b < a asks for a - b - 1 = 0 or more";
  EXPECT_EQ(answer({kEqual, a, b + Expr(1)}, kLessEqual, b, a), true);
  EXPECT_EQ(answer({kEqual, a, b}, kNotEqual, a, b), false);
  EXPECT_EQ(answer({kNotEqual, a, b}, kEqual, b, a), false);
  EXPECT_EQ(answer({kNotEqual, a, b}, kLess, b, a), std::nullopt);
}

TEST(Implied, ThreeTimesOfBothSidesSayTheSame) {
  const Expr a = size_symbol(0), b = size_symbol(1), half = floordiv(a + b + Expr(1), Expr(2));
  const SizeGuard fact{Relation::kEqual, Expr(144) * half, Expr(144) * a + Expr(144) * b - Expr(144) * half};
  EXPECT_EQ(answer(fact, Relation::kEqual, half, a + b - half), true);
  EXPECT_EQ(answer(fact, Relation::kEqual, Expr(36) * half, Expr(36) * (a + b - half)), true);
}

// Whatever is answered holds wherever the fact does.
TEST(Implied, AnswersAgreeWithNumbers) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(random); };
  const std::vector<Expr> sizes = {size_symbol(0), size_symbol(1), size_symbol(2)};
  const auto some = [&] {
    Expr e = Expr(pick(-6, 6));
    for (int64_t n = pick(1, 3); n > 0; --n) {
      Expr term = sizes[static_cast<size_t>(pick(0, 2))];
      if (pick(0, 2) == 0) term = term * sizes[static_cast<size_t>(pick(0, 2))];
      if (pick(0, 2) == 0) term = floordiv(term + Expr(pick(0, 3)), Expr(pick(2, 4)));
      e = e + Expr(pick(-3, 3)) * term;
    }
    return e;
  };
  int answers = 0;
  for (int i = 0; i < 20000; ++i) {
    const SizeGuard fact{static_cast<Relation>(pick(0, 3)), some(), some()};
    const Expr times = pick(0, 1) != 0 ? Expr(pick(1, 3)) : sizes[static_cast<size_t>(pick(0, 2))];
    const Expr a = pick(0, 2) == 0 ? some() : times * fact.a - Expr(pick(0, 2)),
               b = pick(0, 3) == 0 ? some() : times * fact.b;
    const auto relation = static_cast<Relation>(pick(0, 3));
    const std::optional<bool> answered = answer(fact, relation, a, b);
    if (!answered) continue;
    ++answers;
    for (int k = 0; k < 60; ++k) {
      const int64_t numbers[] = {pick(0, 9), pick(0, 9), pick(0, 60)};
      const auto value = [&](Expr v) { return numbers[*size_symbol_index(v)]; };
      if (!satisfied(fact.relation, evaluate(fact.a, value), evaluate(fact.b, value))) continue;
      ASSERT_EQ(satisfied(relation, evaluate(a, value), evaluate(b, value)), *answered)
          << str(fact) << " says of " << str(SizeGuard{relation, a, b});
    }
  }
  EXPECT_GT(answers, 1000);
}

}  // namespace
}  // namespace flashover::sym
