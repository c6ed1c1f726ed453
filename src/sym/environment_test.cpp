// What is asked of sizes: known answers add nothing, equalities are solved, the rest is kept as guards.
#include "sym/environment.h"

#include <gtest/gtest.h>

#include <random>

#include "base/check.h"
#include "sym/bounded.h"
#include "sym/quotient.h"

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
  EXPECT_TRUE(e.holds(kLessEqual, Expr(0), a));
  EXPECT_FALSE(e.holds(kEqual, a, Expr(-1)));
  EXPECT_TRUE(e.holds(kEqual, 2 * a, a + a));
  EXPECT_TRUE(texts(e).empty());
}

TEST(Environment, QuotientsByDivisorsAreToldByOne) {
  Environment e;
  const Expr a = e.add(64), b = e.add(3), c = e.add(96);
  EXPECT_TRUE(e.holds(kEqual, mod(a, 4), 0));
  EXPECT_EQ(e.canonical(floordiv(a + 3, 4)), floordiv(a, 4));
  EXPECT_TRUE(e.holds(kEqual, mod(a, 32), 0));
  EXPECT_TRUE(e.holds(kEqual, mod(c, 6), 0));
  EXPECT_EQ(e.canonical(floordiv(a + 3, 4)), 8 * floordiv(a, 32));
  EXPECT_EQ(e.canonical(mod(a + 7, 4)), Expr(3));
  EXPECT_EQ(e.canonical(4 * b * floordiv(a, 4)), a * b);
  const size_t before = texts(e).size();
  EXPECT_TRUE(e.holds(kEqual, floordiv(64 * b * floordiv(a, 32), 2 * floordiv(a, 4)), 4 * b));
  EXPECT_TRUE(e.holds(kEqual, 3 * floordiv(c, 6), floordiv(c, 2)));
  EXPECT_LE(texts(e).size(), before + 1) << "that a is not 0";
  for (int64_t n = 0; n < 500; n += 32)
    for (const Expr x : {floordiv(a + 5, 8), floordiv(a - 1, 16), mod(a - 3, 8), mod(a + 37, 32), floordiv(3 * a, 4)}) {
      const auto value = [n](Expr) { return n; };
      EXPECT_EQ(evaluate(e.canonical(x), value), evaluate(x, value)) << x.str() << " of " << n;
    }
}

TEST(Environment, SizesMayBeZeroWhereNobodyAsks) {
  Environment e;
  const Expr a = e.add(7), b = e.add(9);
  EXPECT_TRUE(e.holds(kNotEqual, a, Expr(0)));
  EXPECT_TRUE(e.holds(kLess, Expr(0), b));
  EXPECT_EQ(texts(e), (std::vector<std::string>{"s0 != 0", "0 < s1"}));
  EXPECT_TRUE(e.holds(kLess, Expr(0), a * b)) << "both are more";
  EXPECT_TRUE(e.holds(kLessEqual, b, a * b));
  EXPECT_EQ(texts(e).size(), 2u);
}

TEST(Environment, AGuardOfAQuotientSaysWhatASizeIsAtLeast) {
  const Expr a = size_symbol(0);
  const AssumeScope facts({{kLessEqual, Expr(2), floordiv(2 * a + 1, Expr(3))}});
  EXPECT_TRUE(known_le(Expr(3), a));
  EXPECT_FALSE(known_le(Expr(4), a));
}

TEST(Environment, AGuardOfASizeSaysNothingOfLoopsBelowIt) {
  const Expr a = size_symbol(0), i = var_below("row.s0", a);
  const AssumeScope facts({{kLessEqual, Expr(2), a - 4}});
  EXPECT_FALSE(known_lt(i - 2, a - 4)) << "not for the last ones";
  EXPECT_FALSE(known_ne(i, a - 1));
  EXPECT_TRUE(known_lt(i, a));
  EXPECT_TRUE(known_lt(i - 2, a - 2)) << "whatever the guard says";
  EXPECT_TRUE(known_lt(i, 2 * a - 6)) << "a is 6 or more";
  EXPECT_FALSE(known_lt(i, 2 * a - 7));
  const PresumeScope presume;
  EXPECT_FALSE(known_lt(i - 2, a - 4));
}

// Whatever is proven of loops and sizes by guards holds for all numbers that the guards allow.
TEST(Environment, WhatGuardsProveOfLoopsHolds) {
  const Expr a = size_symbol(0), b = size_symbol(1), i = var_below("row.s0", a), j = var_below("column.s1", b);
  std::mt19937 random(3);
  const auto pick = [&](int lo, int hi) { return Expr(std::uniform_int_distribution<int>(lo, hi)(random)); };
  const auto sum = [&] { return pick(-1, 1) * i + pick(-1, 1) * j + pick(-1, 2) * a + pick(-1, 1) * b + pick(-6, 6); };
  int proven = 0;
  for (int round = 0; round < 4000; ++round) {
    const SizeGuard guards[] = {{kLessEqual, pick(0, 4), a - pick(0, 4)}, {kLess, pick(0, 3), floordiv(b, pick(1, 3))}};
    const Expr x = sum(), y = sum();
    bool less = false, at_most = false, differ = false;
    {
      const AssumeScope facts({guards[0], guards[1]});
      less = known_lt(x, y), at_most = known_le(x, y), differ = known_ne(x, y);
    }
    if (!less && !at_most && !differ) continue;
    ++proven;
    for (int64_t s = 0; s < 14; ++s)
      for (int64_t t = 0; t < 14; ++t) {
        const auto at = [&](Expr e, int64_t row, int64_t column) {
          return evaluate(e, [&](Expr v) { return v == a ? s : v == b ? t : v == i ? row : column; });
        };
        const auto holds = [&](const SizeGuard& g) { return satisfied(g.relation, at(g.a, 0, 0), at(g.b, 0, 0)); };
        if (!holds(guards[0]) || !holds(guards[1])) continue;
        for (int64_t row = 0; row < s; ++row)
          for (int64_t column = 0; column < t; ++column) {
            const int64_t left = at(x, row, column), right = at(y, row, column);
            ASSERT_TRUE((!less || left < right) && (!at_most || left <= right) && (!differ || left != right))
                << x.str() << " and " << y.str() << " where " << str(guards[0]) << " and " << str(guards[1]) << ", at "
                << s << ", " << t << ", " << row << ", " << column;
          }
      }
  }
  EXPECT_GT(proven, 300);
}

// A size is at most what it is rounded up to, and at least what it is rounded down to.
TEST(Environment, SizesThatAreRounded) {
  Environment e;
  const Expr a = e.add(33), up = Expr(32) * floordiv(a + Expr(31), Expr(32)), down = Expr(8) * floordiv(a, Expr(8));
  EXPECT_TRUE(e.holds(kLessEqual, a, up));
  EXPECT_TRUE(e.holds(kLessEqual, down, a));
  EXPECT_TRUE(e.holds(kLessEqual, down, up));
  EXPECT_TRUE(e.holds(kLess, up, a + Expr(32)));
  EXPECT_TRUE(e.guards().empty());
  EXPECT_FALSE(e.holds(kEqual, up, a));  // a question: it depends
  EXPECT_EQ(e.guards().size(), 1u);
}

TEST(Environment, AnEqualityHoldsTimesANumberAndASize) {
  const Expr a = size_symbol(0), b = size_symbol(1), up = Expr(32) * floordiv(a + Expr(31), Expr(32));
  const AssumeScope facts({{kEqual, up, a}});
  EXPECT_TRUE(known_eq(up, a));
  EXPECT_TRUE(known_eq(Expr(3) * up, Expr(3) * a));
  EXPECT_TRUE(known_eq(Expr(3) * b * up, Expr(3) * b * a));
  EXPECT_FALSE(known_eq(Expr(3) * b * up, Expr(2) * b * a));
  EXPECT_TRUE(known_le(up * b, a * b));
}

TEST(Environment, WhatIsProvenOfQuotientsHolds) {
  const Expr a = size_symbol(0), b = size_symbol(1);
  std::mt19937 random(5);
  const auto pick = [&](int lo, int hi) { return Expr(std::uniform_int_distribution<int>(lo, hi)(random)); };
  int proven = 0;
  for (int round = 0; round < 6000; ++round) {
    const Expr by = pick(2, 5), moved = pick(-3, 6), rounded = by * floordiv(a + moved, by);
    const auto sum = [&] { return pick(-2, 2) * a + pick(-2, 2) * rounded + pick(-1, 1) * b + pick(-7, 7); };
    const Relation relation = random() % 2 ? kEqual : kLessEqual;
    const SizeGuard guard{relation, pick(1, 2) * rounded, pick(1, 2) * a + pick(-1, 1)};
    const Expr x = sum(), y = sum();
    bool equal = false, less = false, at_most = false, differ = false;
    {
      const AssumeScope facts({guard});
      equal = known_eq(x, y), less = known_lt(x, y), at_most = known_le(x, y), differ = known_ne(x, y);
    }
    if (!equal && !less && !at_most && !differ) continue;
    ++proven;
    for (int64_t s = 0; s < 24; ++s)
      for (int64_t t = 0; t < 6; ++t) {
        const auto at = [&](Expr e) { return evaluate(e, [&](Expr v) { return v == a ? s : t; }); };
        if (!satisfied(guard.relation, at(guard.a), at(guard.b))) continue;
        const int64_t left = at(x), right = at(y);
        ASSERT_TRUE((!equal || left == right) && (!less || left < right) && (!at_most || left <= right) &&
                    (!differ || left != right))
            << x.str() << " and " << y.str() << " where " << str(guard) << ", at " << s << ", " << t;
      }
  }
  EXPECT_GT(proven, 300);
}

TEST(Environment, AGuardOfAProductSaysThatNoSizeIsZero) {
  const Expr a = size_symbol(0), b = size_symbol(1);
  const AssumeScope facts({{kNotEqual, 3 * a * b, Expr(0)}});
  EXPECT_TRUE(known_lt(Expr(0), a));
  EXPECT_TRUE(known_le(a, a * b));
  EXPECT_FALSE(known_le(Expr(2), b));
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

TEST(Environment, AQuotientThatIsFoundToBeANumberStandsForIt) {
  Environment e;
  const Expr rows = e.add(5), columns = e.add(6);
  const Expr windows = floordiv(rows + Expr(6), Expr(7)), across = floordiv(columns + Expr(6), Expr(7));
  EXPECT_TRUE(e.holds(kEqual, Expr(3) * windows, Expr(3)));
  EXPECT_TRUE(e.holds(kEqual, across, Expr(1)));
  EXPECT_EQ(e.canonical(Expr(49) * rows * windows * across), Expr(49) * rows);
  EXPECT_EQ(e.canonical(floordiv(rows, windows + Expr(1))), floordiv(rows, Expr(2)));
  const std::vector<std::string> guards = {"(s0 + 6) // 7 == 1", "(s1 + 6) // 7 == 1"};
  EXPECT_EQ(texts(e), guards);
  EXPECT_TRUE(e.holds(kLess, Expr(0), windows));
  EXPECT_EQ(texts(e), guards) << "that follows";
  // One that stands for another size takes along what was found of it.
  const Expr same = e.add(5);
  EXPECT_TRUE(e.holds(kEqual, floordiv(same + Expr(6), Expr(7)), Expr(1)));
  EXPECT_TRUE(e.holds(kEqual, same, rows));
  EXPECT_EQ(e.canonical(floordiv(same + Expr(6), Expr(7))), Expr(1));
  EXPECT_EQ(texts(e), guards);
  const Environment later = Environment::assuming(e.facts());
  EXPECT_TRUE(later.follows(kEqual, Expr(49) * rows * windows * across, Expr(49) * rows));
}

TEST(Environment, FactorsOfOneAreOne) {
  Environment e;
  const Expr rows = e.add(5), columns = e.add(6), below = e.add(1);
  const Expr windows = floordiv(rows + Expr(6), Expr(7)), across = floordiv(columns + Expr(6), Expr(7));
  EXPECT_TRUE(e.holds(kEqual, Expr(4) * windows * across, Expr(4)));
  EXPECT_EQ(e.canonical(rows * across), rows);
  EXPECT_EQ(e.canonical(windows), Expr(1));
  EXPECT_EQ(texts(e).size(), 1u) << "the guard stays";
  const Expr some = floordiv(below - Expr(3), Expr(2)), other = floordiv(below - Expr(2), Expr(1));
  EXPECT_TRUE(e.holds(kEqual, some * other, Expr(1)));
  EXPECT_EQ(e.canonical(some), some) << "both may be -1";
}

TEST(Environment, WhatIsAMultipleSaysWhatItsPartsAre) {
  Environment e;
  const Expr rows = e.add(14), columns = e.add(5);
  const Expr half = floordiv(rows + Expr(1), Expr(2)), windows = floordiv(half + Expr(6), Expr(7));
  EXPECT_TRUE(e.holds(kEqual, Expr(1344) * windows, Expr(192) * half));
  EXPECT_EQ(e.canonical(Expr(14) * windows * columns + Expr(1)), Expr(2) * half * columns + Expr(1));
  EXPECT_EQ(e.canonical(Expr(3) * windows), Expr(3) * windows);
  EXPECT_EQ(e.canonical(floordiv(Expr(7) * windows * columns, half)), columns);
  EXPECT_TRUE(Environment::assuming(e.facts()).follows(kEqual, Expr(49) * windows, Expr(7) * half));
}

TEST(Environment, BothEndsOfASizeBoundWhatIsMadeOfIt) {
  Environment e;
  const Expr samples = e.add(8000), batch = e.add(2);
  const Expr frames = floordiv(floordiv(samples, Expr(80)) + Expr(1), Expr(2)) - Expr(1);
  EXPECT_TRUE(e.holds(kLessEqual, Expr(720), samples));
  EXPECT_TRUE(e.holds(kLessEqual, samples, Expr(160000)));
  EXPECT_TRUE(e.follows(kLessEqual, Expr(4), frames));
  EXPECT_TRUE(e.follows(kLessEqual, frames, Expr(999)));
  EXPECT_FALSE(e.follows(kLessEqual, frames, Expr(998)));
  EXPECT_FALSE(e.follows(kLess, Expr(8) * frames, Expr(8) * batch * frames)) << "a batch may be 1";
  const PresumeScope presume;
  EXPECT_TRUE(e.follows(kLess, Expr(8) * frames, Expr(8) * batch * frames));
}

TEST(Environment, QuotientsBetweenBoundsAreNumbers) {
  Environment e;
  const Expr batch = e.add(2), rows = e.add(7), windows = floordiv(rows + Expr(6), Expr(7));
  EXPECT_TRUE(e.holds(kLess, Expr(0), rows));
  EXPECT_TRUE(e.holds(kLessEqual, rows, Expr(7)));
  EXPECT_TRUE(e.follows(kEqual, windows, Expr(1)));
  EXPECT_EQ(e.canonical(floordiv(batch, windows)), batch);
  EXPECT_TRUE(e.holds(kEqual, Expr(7) * windows, rows));
  EXPECT_EQ(e.canonical(rows), Expr(7));
}

TEST(Environment, SizesOfOneNumberDivideAsOne) {
  Environment e;
  const Expr batch = e.add(2), length = e.add(6), other = e.add(2), odd = e.add(5);
  const Expr all = Expr(32) * batch * length, part = Expr(8) * other;
  EXPECT_EQ(known_quotient(all, part).str(), "(4*s0*s1) // s2") << "nobody asks";
  const AskScope ask(&e);
  EXPECT_EQ(known_quotient(batch * length, odd).str(), "(s0*s1) // s3");
  EXPECT_EQ(known_quotient(batch * length + Expr(1), other).str(), "(s0*s1 + 1) // s2");
  EXPECT_EQ(e.canonical(other), other);
  EXPECT_EQ(known_quotient(all, part), Expr(4) * length);
  EXPECT_EQ(e.canonical(other), batch);
}

TEST(Environment, QuotientsAreInTheWordsOfWhatIsKnown) {
  Environment e;
  const Expr batch = e.add(2), rows = e.add(7), windows = floordiv(rows + Expr(6), Expr(7));
  EXPECT_TRUE(e.holds(kEqual, windows, Expr(1)));
  EXPECT_EQ(known_quotient(Expr(49) * batch, Expr(49) * windows), floordiv(batch, windows)) << "nobody asks";
  const AskScope ask(&e);
  EXPECT_EQ(known_quotient(Expr(49) * batch, Expr(49) * windows), batch);
}

TEST(Environment, WhatIsPresumedIsNoGuard) {
  Environment e;
  const Expr a = e.add(7), b = e.add(9);
  {
    const PresumeScope presume;
    EXPECT_FALSE(e.holds(kEqual, a, Expr(1)));
    EXPECT_FALSE(e.holds(kEqual, a * b, b));
    EXPECT_TRUE(e.holds(kLess, Expr(1), a * b));
  }
  EXPECT_TRUE(texts(e).empty());
  EXPECT_FALSE(e.holds(kEqual, a, Expr(1)));
  EXPECT_EQ(texts(e), std::vector<std::string>{"s0 != 1"});
}

TEST(Environment, SizesOfOperatorsAreLargeWhereSymbolsAre) {
  Environment e;
  const Expr a = e.add(7), b = e.add(9);
  EXPECT_EQ(e.settled(a * b), a * b);
  EXPECT_EQ(e.settled(a + 1), a + 1);
  EXPECT_TRUE(texts(e).empty());
  EXPECT_EQ(e.settled(a - 1), a - 1);
  EXPECT_EQ(texts(e), std::vector<std::string>{"2 <= s0 - 1"});
  EXPECT_EQ(e.settled(b - 9), Expr(0));
}

TEST(Environment, FactsSayNumbers) {
  const Expr a = size_symbol(0);
  const AssumeScope facts({{kEqual, floordiv(a + 1, Expr(2)), Expr(4)}});
  EXPECT_EQ(number_of(floordiv(a + 1, Expr(2))), std::optional<int64_t>(4));
  EXPECT_EQ(number_of(a), std::nullopt);
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

// (A guard that is solved is no guard any more: what it fixed is told of apart.)
TEST(Environment, LinesOfTheProgram) {
  Environment e;
  std::string line = "m.py:1";
  e.line = [&] { return line; };
  const Expr a = e.add(7), b = e.add(7), c = e.add(9);
  e.holds(kLess, a, Expr(8));
  line = "m.py:2";
  e.holds(kEqual, a, b);
  line = "m.py:3";
  e.specialize(c, Fixing::kRead);
  line = "m.py:4";
  e.holds(kEqual, a, Expr(7));
  EXPECT_TRUE(e.asked().empty()) << "7 < 8";
  EXPECT_EQ(e.where_equal(1), "m.py:2");
  ASSERT_EQ(e.fixed().size(), 3u);
  EXPECT_EQ(e.fixed()[0].symbol, 2);
  EXPECT_EQ(e.fixed()[0].how, Fixing::kRead);
  EXPECT_EQ(e.fixed()[0].where, "m.py:3");
  for (size_t k : {1, 2}) {  // s1 with s0
    EXPECT_EQ(e.fixed()[k].value, 7);
    EXPECT_EQ(e.fixed()[k].how, Fixing::kCompared);
    EXPECT_EQ(e.fixed()[k].where, "m.py:4");
  }
}

TEST(Environment, BoundsAnswerAndAreGuards) {
  Environment e;
  const Expr a = e.add(5, {Promise::Kind::kDynamic, true, 3, 8});
  EXPECT_TRUE(e.holds(kLess, a, Expr(9)));
  EXPECT_FALSE(e.holds(kEqual, a, Expr(2)));
  EXPECT_EQ(texts(e), (std::vector<std::string>{"3 <= s0", "s0 <= 8"}));
  EXPECT_TRUE(e.broken().empty());
}

TEST(Environment, PromisesThatAreNotKept) {
  const auto broken = [](const Promise& promise, int64_t now, auto ask) {
    Environment e;
    ask(e, e.add(now, promise));
    const std::vector<BrokenPromise> out = e.broken();
    return out.empty() ? -1 : out.front().what.value;
  };
  using Kind = Promise::Kind;
  const auto fix = [](Environment& e, Expr a) { e.holds(kEqual, a, Expr(5)); };
  const auto read = [](Environment& e, Expr a) { e.specialize(a, Fixing::kRead); };
  const auto below = [](Environment& e, Expr a) { e.holds(kLess, a, Expr(6)); };
  const auto even = [](Environment& e, Expr a) { e.holds(kEqual, mod(a, Expr(2)), Expr(0)); };
  const auto not_seven = [](Environment& e, Expr a) { e.holds(kEqual, a, Expr(7)); };
  EXPECT_EQ(broken({Kind::kNone}, 5, fix), -1);
  EXPECT_EQ(broken({Kind::kDynamic}, 5, fix), 5);
  EXPECT_EQ(broken({Kind::kUnbacked}, 5, fix), -1);
  EXPECT_EQ(broken({Kind::kUnbacked}, 5, read), 5);
  EXPECT_EQ(broken({Kind::kDynamic}, 5, below), -1) << "two sizes at least are left";
  EXPECT_EQ(broken({Kind::kDynamic, true, 3, 8}, 5, below), 6);
  EXPECT_EQ(broken({Kind::kDynamic, true, 3, 5}, 5, below), -1);
  EXPECT_EQ(broken({Kind::kDynamic, true, 3}, 5, below), 6);
  EXPECT_EQ(broken({Kind::kDynamic, true, 4, 8}, 6, even), 5);
  EXPECT_EQ(broken({Kind::kDynamic, true, 3, 8}, 5, not_seven), 7);
  EXPECT_EQ(broken({Kind::kDynamic, true, 3, 6}, 5, not_seven), -1);
  EXPECT_EQ(broken({Kind::kDynamic, true, 3, 1000000}, 5000,
                   [](Environment& e, Expr a) { e.holds(kLessEqual, a, Expr(999999)); }),
            1000000);
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

TEST(Environment, EqualitiesThatDivisorsGiveAreAskedForAsDivisors) {
  Environment sizes;
  const Expr h = sizes.add(64), w = sizes.add(32), four(4);
  EXPECT_TRUE(sizes.holds(Relation::kEqual, h * w, Expr(16) * floordiv(h, four) * floordiv(w, four)));
  const auto guards = sizes.guards();
  ASSERT_EQ(guards.size(), 2u);
  EXPECT_EQ(str(guards[0]), "s0 mod 4 == 0");
  EXPECT_EQ(str(guards[1]), "s1 mod 4 == 0");
  EXPECT_TRUE(sizes.follows(Relation::kEqual, h * Expr(3), Expr(12) * floordiv(h, four)));
  EXPECT_TRUE(sizes.follows(Relation::kEqual, mod(h + Expr(8), four), Expr(0)));
  EXPECT_FALSE(sizes.follows(Relation::kEqual, mod(h, Expr(8)), Expr(0)));
}

// One row of a small image's last level is recorded as several: from which size on there are several is noted.
TEST(Environment, OneElementThatAnOperatorMakesMayBeOpened) {
  Environment sizes;
  sizes.opens = true;
  const Expr h = sizes.add(100), level = floordiv(floordiv(h + 31, Expr(32)) + 3, Expr(4));
  EXPECT_EQ(sizes.settled(floordiv(h + 31, Expr(32))), floordiv(h + 31, Expr(32)));
  EXPECT_EQ(texts(sizes), std::vector<std::string>{"33 <= s0"}) << "4 rows, of which nothing is opened";
  EXPECT_EQ(sizes.settled(level), level);
  EXPECT_EQ(texts(sizes), std::vector<std::string>{"33 <= s0"});
  EXPECT_EQ(sizes.steps(), (Environment::Steps{{0, {129}}}));
  EXPECT_EQ(sizes.opened(), std::vector<Expr>{level});
  EXPECT_FALSE(sizes.follows(kLessEqual, Expr(2), level)) << "it is one in this call";
  const PresumeScope presume;
  EXPECT_TRUE(sizes.follows(kLessEqual, Expr(2), level));
}

TEST(Environment, WhatDoesNotGrowWithOneSizeIsNotOpened) {
  Environment sizes;
  sizes.opens = true;
  const Expr a = sizes.add(3), b = sizes.add(5), c = sizes.add(5);
  EXPECT_EQ(sizes.settled(floordiv(a, 2)), floordiv(a, 2));
  EXPECT_EQ(sizes.settled(mod(a, 2)), Expr(1));
  EXPECT_EQ(sizes.settled(c - b + 1), Expr(1));
  EXPECT_EQ(sizes.steps(), (Environment::Steps{{0, {4}}}));
}

// Products and quotients are bounds of sizes in other words: the first question answers the others.
TEST(Environment, GuardsAreInTheSimplestWords) {
  Environment sizes;
  const Expr n = sizes.add(3), h = sizes.add(40), w = sizes.add(56);
  const auto windows = [](Expr e) { return floordiv(floordiv(e, 4) + 7, 8); };
  EXPECT_TRUE(sizes.holds(Relation::kLess, Expr(8), Expr(8) * windows(h)));
  EXPECT_TRUE(sizes.holds(Relation::kLessEqual, Expr(2), windows(w)));
  EXPECT_EQ(texts(sizes), (std::vector<std::string>{"36 <= s1", "36 <= s2"}));
  EXPECT_TRUE(sizes.holds(Relation::kLess, Expr(96) * windows(w), Expr(96) * n * windows(h) * windows(w)));
  EXPECT_EQ(texts(sizes), (std::vector<std::string>{"36 <= s1", "36 <= s2", "1 <= s0"}));
  EXPECT_TRUE(sizes.follows(Relation::kLess, Expr(6144), Expr(6144) * n * windows(h) * windows(w)));
  EXPECT_TRUE(sizes.follows(Relation::kNotEqual, n * windows(h) * windows(w), Expr(1)));
  EXPECT_TRUE(sizes.follows(Relation::kLessEqual, floordiv(h, 4), Expr(8) * windows(h)));
  EXPECT_TRUE(sizes.follows(Relation::kLess, mod(Expr(-4), Expr(8) * windows(h)), Expr(8) * windows(h)));
  EXPECT_FALSE(sizes.follows(Relation::kLess, Expr(8) * windows(h) - Expr(8), floordiv(h, 4) - Expr(1)));
  EXPECT_TRUE(sizes.holds(Relation::kLessEqual, floordiv(n, 2), Expr(5)));
  EXPECT_EQ(texts(sizes).back(), "s0 <= 11");
}

// Whatever guards say in simpler words is what was asked: no size is let in or kept out.
TEST(Environment, SimplestWordsSayTheSame) {
  uint64_t state = 88172645463325252u;
  const auto draw = [&state](int64_t n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return static_cast<int64_t>(state % static_cast<uint64_t>(n));
  };
  const Expr s = size_symbol(0), t = size_symbol(1);
  const auto part = [&] {
    const Expr size = draw(2) ? s : t;
    return draw(3) ? floordiv(size + Expr(draw(9)), Expr(1 + draw(4))) : size - Expr(draw(4));
  };
  int64_t simpler = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto side = [&] {
      Expr e = Expr(draw(2) ? draw(20) - 5 : 0);
      for (int64_t terms = draw(3); terms-- > 0;) {
        Expr term = Expr(1 + draw(6));
        for (int64_t factors = 1 + draw(2); factors-- > 0;) term *= part();
        e += term;
      }
      return e;
    };
    Environment sizes;
    const std::vector<int64_t> now = {draw(9), draw(9)};
    for (int64_t n : now) sizes.add(n);
    if (draw(2)) sizes.holds(Relation::kLessEqual, Expr(2), draw(2) ? s : t);
    std::vector<SizeGuard> asked = sizes.guards();
    const SizeGuard question{static_cast<Relation>(draw(4)), side(), side()};
    const bool answer = sizes.holds(question.relation, question.a, question.b);
    const std::vector<SizeGuard> guards = sizes.guards();
    simpler += guards.size() > asked.size() && !(guards.back() == question);
    const auto all = [](const std::vector<SizeGuard>& list, const auto& value) {
      return std::ranges::all_of(
          list, [&](const SizeGuard& g) { return satisfied(g.relation, evaluate(g.a, value), evaluate(g.b, value)); });
    };
    for (int64_t x = 0; x < 12; ++x)
      for (int64_t y = 0; y < 12; ++y) {
        const auto value = [&](Expr e) { return e == s ? x : y; };
        const auto in = [&](Expr e) { return evaluate(e, value); };
        if (!(in(sizes.canonical(s)) == x && in(sizes.canonical(t)) == y)) continue;  // an equality was solved
        const bool so = satisfied(question.relation, in(question.a), in(question.b)) == answer;
        ASSERT_EQ(all(guards, value), all(asked, value) && so) << str(question) << " at " << x << ", " << y;
      }
  }
  EXPECT_GT(simpler, 300);
}

// What calls found to be otherwise is answered the other way.
TEST(Environment, RefutedFacts) {
  Environment e;
  std::vector<std::string> checks;
  e.assume = [&](const SizeGuard&, std::string words) { checks.push_back(std::move(words)); };
  e.line = [] { return "model.py:3"; };
  e.refuted = {"u0 != 1 (model.py:3)"};
  const Expr u = e.add_data_size();
  EXPECT_TRUE(e.holds(Relation::kEqual, u, Expr(1)));
  EXPECT_EQ(checks, std::vector<std::string>{"u0 == 1 (model.py:3)"});
  EXPECT_TRUE(e.canonical(u).is_const(1));
}

// Of x[:u] there are u rows, and not all that x has; both are asked in words that more follows from.
TEST(Environment, PartsAsLongAsDataSays) {
  Environment e;
  std::vector<std::string> checks;
  e.assume = [&](const SizeGuard&, std::string words) { checks.push_back(std::move(words)); };
  const Expr u = e.add_data_size(), part = min(Expr(16), u);
  EXPECT_TRUE(e.holds(Relation::kEqual, Expr(3) * part, Expr(3) * u));
  EXPECT_EQ(e.canonical(Expr(2) * part), Expr(2) * u);
  EXPECT_TRUE(e.holds(Relation::kEqual, part, u));
  EXPECT_EQ(checks, std::vector<std::string>{"u0 <= 16"});
  EXPECT_FALSE(e.holds(Relation::kEqual, min(Expr(20), e.add_data_size()), Expr(20)));
  EXPECT_EQ(checks.back(), "u1 < 20");
  {
    const AssumeScope facts(e.facts());
    EXPECT_TRUE(known_eq(part, u));
  }
}

// No number of the trace answers for a size that follows from data: what is not known for all of them is checked.
TEST(Environment, SizesOfData) {
  Environment e;
  std::vector<std::string> checks;
  e.assume = [&](const SizeGuard&, std::string words) { checks.push_back(std::move(words)); };
  const Expr s = e.add(7), u = e.add_data_size();
  EXPECT_EQ(u.str(), "u0");
  e.know({Relation::kLessEqual, u, s});
  EXPECT_TRUE(e.holds(Relation::kLessEqual, Expr(0), u));
  EXPECT_TRUE(e.holds(Relation::kLessEqual, u, s));
  EXPECT_TRUE(checks.empty());
  EXPECT_FALSE(e.holds(Relation::kEqual, u, Expr(1)));
  EXPECT_FALSE(e.holds(Relation::kEqual, u, Expr(1)));
  EXPECT_EQ(checks, std::vector<std::string>{"u0 != 1"});
  {
    const LayoutScope layout;
    EXPECT_FALSE(e.holds(Relation::kLess, u, Expr(2)));
  }
  {
    const LayoutScope layout;
    EXPECT_TRUE(e.holds(Relation::kLess, Expr(4), Expr(4) * u));
  }
  EXPECT_EQ(checks.size(), 1u) << "few elements lie anywhere";
  EXPECT_THROW(e.specialize(u), Declined);
  EXPECT_TRUE(e.guards().empty()) << "no guard is about what the call finds";
  EXPECT_EQ(e.facts().size(), 2u);
  const Expr v = e.add_data_size();
  EXPECT_TRUE(e.holds(Relation::kEqual, v, s - u));
  EXPECT_EQ(e.canonical(v).str(), (s - u).str());
  EXPECT_EQ(e.canonical(s), s);
}

// A guess is none where this call's sizes rule it out: of 5 elements not 8 are found.
TEST(Environment, WhatCannotBeIsNotGuessed) {
  for (const int64_t listed : {4, 8}) {
    Environment e;
    std::vector<std::string> checks;
    e.assume = [&](const SizeGuard&, std::string words) { checks.push_back(std::move(words)); };
    const Expr s = e.add(5), t = e.add(listed), u = e.add_data_size();
    e.know({Relation::kLessEqual, u, s});
    EXPECT_EQ(e.holds(Relation::kEqual, u, t), listed == 4);
    EXPECT_EQ(checks, std::vector<std::string>{listed == 4 ? "u0 == s1" : "u0 != s1"});
  }
}

}  // namespace
}  // namespace flashover::sym
