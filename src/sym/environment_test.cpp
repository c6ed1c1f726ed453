// What is asked of sizes: known answers add nothing, equalities are solved, the rest is kept as guards.
#include "sym/environment.h"

#include <gtest/gtest.h>

namespace flashover::sym {
namespace {

using enum Relation;

std::vector<std::string> texts(const Environment& e) {
  std::vector<std::string> out;
  for (const SizeGuard& g : e.guards()) out.push_back(str(g));
  return out;
}

TEST(Environment, WhatIsKnownIsNoGuard) {
  Environment e;
  const Expr a = e.add(7);
  EXPECT_TRUE(e.holds(kLess, Expr(1), a));
  EXPECT_FALSE(e.holds(kEqual, a, Expr(1)));
  EXPECT_TRUE(e.holds(kEqual, 2 * a, a + a));
  EXPECT_TRUE(texts(e).empty());
}

TEST(Environment, AGuardHoldsTimesASize) {
  Environment e;
  const Expr a = e.add(7), b = e.add(9);
  EXPECT_TRUE(e.holds(kLessEqual, Expr(3), a));
  EXPECT_TRUE(e.holds(kLessEqual, 3 * b, a * b));
  EXPECT_EQ(texts(e), std::vector<std::string>{"3 <= s0"});
  EXPECT_TRUE(e.holds(kLess, 5 * b, a * b));
  EXPECT_EQ(texts(e).size(), 2u);
}

TEST(Environment, TheFarEndOfASliceIsBeyondEverySize) {
  Environment e;
  const Expr a = e.add(7), end = INT64_MAX;
  EXPECT_TRUE(e.holds(kLess, 2 * a + 5, end));
  EXPECT_FALSE(e.holds(kLessEqual, end, a));
  EXPECT_TRUE(e.holds(kNotEqual, a, end));
  EXPECT_FALSE(e.holds(kEqual, a, end));
  EXPECT_TRUE(texts(e).empty());
}

TEST(Environment, EqualSizesBecomeOne) {
  Environment e;
  const Expr a = e.add(7), b = e.add(7), c = e.add(14);
  EXPECT_TRUE(e.holds(kEqual, a, b));
  EXPECT_TRUE(e.holds(kEqual, c, a + b));
  EXPECT_EQ(e.canonical(b), a);
  EXPECT_EQ(e.canonical(c), 2 * a);
  EXPECT_TRUE(texts(e).empty());  // the types say it
}

TEST(Environment, WhatDiffersNowIsGuarded) {
  Environment e;
  const Expr a = e.add(7), b = e.add(9);
  EXPECT_FALSE(e.holds(kEqual, a, b));
  EXPECT_EQ(texts(e), std::vector<std::string>{"s0 != s1"});
  EXPECT_FALSE(e.holds(kEqual, b, a));
  EXPECT_TRUE(e.holds(kNotEqual, a, b));
  EXPECT_EQ(texts(e).size(), 1);
}

TEST(Environment, AGuardAnswersWeakerQuestions) {
  Environment e;
  const Expr a = e.add(100);
  EXPECT_TRUE(e.holds(kLessEqual, Expr(64), a));
  EXPECT_TRUE(e.holds(kLess, Expr(10), a));
  EXPECT_FALSE(e.holds(kEqual, a, Expr(3)));
  EXPECT_EQ(texts(e), std::vector<std::string>{"64 <= s0"});
  EXPECT_FALSE(e.holds(kLessEqual, Expr(128), a));
  EXPECT_EQ(texts(e).size(), 2);
}

TEST(Environment, Divisibility) {
  Environment e;
  const Expr a = e.add(12);
  EXPECT_TRUE(e.holds(kEqual, mod(a, Expr(4)), Expr(0)));
  EXPECT_TRUE(e.holds(kEqual, Expr(0), mod(a, Expr(4))));
  EXPECT_EQ(texts(e).size(), 1);
  EXPECT_EQ(e.canonical(a), a);
}

TEST(Environment, ASpecializedSizeIsANumber) {
  Environment e;
  const Expr a = e.add(12), b = e.add(5);
  EXPECT_EQ(e.specialize(a), 12);
  EXPECT_EQ(e.specialize(a * b), 60);  // then 12 * b is 60
  EXPECT_EQ(e.canonical(a), Expr(12));
  EXPECT_EQ(e.now(a + b), 17);
  for (const SizeGuard& g : e.guards()) EXPECT_TRUE(g.a.is_const() || !g.b.is_const() || g.relation == kEqual);
}

TEST(Environment, ARangeOutlivesItsSymbol) {
  Environment e;
  const Expr a = e.add(12), b = e.add(9);
  EXPECT_TRUE(e.holds(kEqual, b, a - 3));
  EXPECT_EQ(e.canonical(b), a - 3);
  EXPECT_EQ(texts(e), std::vector<std::string>{"2 <= s0 - 3"});  // as b was
}

TEST(Environment, QuestionsOfTheScope) {
  Environment e;
  const Expr a = e.add(7), b = e.add(7);
  EXPECT_FALSE(known_eq(a, b));
  {
    const AskScope ask(&e);
    EXPECT_TRUE(known_eq(a, b));
    EXPECT_FALSE(known_le(a, Expr(3)));
  }
  EXPECT_FALSE(known_eq(a, b));  // outside nothing is taken for granted
  EXPECT_FALSE(proven_eq(a, b));
}

}  // namespace
}  // namespace flashover::sym
