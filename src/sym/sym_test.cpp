// Algebra, ranges and proofs, and random expressions against plain arithmetic.
#include "sym/sym.h"

#include "sym/quotient.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>

#include "base/check.h"
#include "sym/bounded.h"
#include "sym/samples.h"

namespace flashover::sym {
namespace {

Expr loop(const std::string& name, int64_t extent) {
  return var(name + "." + std::to_string(extent), {0, extent - 1}, 0);
}
Expr size(const std::string& name) { return var(name, {1, Range::kInf}, 8); }

TEST(Sym, EqualSumsAreOneNode) {
  Expr a = loop("i0", 10), b = loop("i1", 7);
  EXPECT_EQ(a * 3 + b + 5, 5 + b + a + a * 2);
  EXPECT_EQ((a + b) * 2 - b * 2, a * 2);
  EXPECT_EQ(a - a, Expr(0));
  EXPECT_EQ((4 * a - b + 3).str(), "4*i0.10 - i1.7 + 3");
}

TEST(Sym, WhatPaddingMakesOfASizeIsRoundedUp) {
  const Expr a = size_symbol(0), b = size_symbol(1), h = floordiv(a, Expr(4));
  EXPECT_EQ((h + mod(-h, Expr(8))).str(), "8*((s0 // 4 + 7) // 8)");
  EXPECT_EQ((b * h + b * mod(-h, Expr(8)) + Expr(3)).str(),
            (b * Expr(8) * floordiv(h + Expr(7), Expr(8)) + Expr(3)).str());
  EXPECT_EQ(mod((h + mod(-h, Expr(8))) * b, Expr(8)), Expr(0));
  EXPECT_EQ((a + mod(-b, Expr(8))).str(), "s0 + (-1*s1) mod 8");
  EXPECT_EQ((a + mod(a, Expr(2))).str(), "2*((s0 + 1) // 2)");
  EXPECT_EQ((a + mod(a, Expr(4))).str(), "s0 + s0 mod 4");
  for (int64_t n = 0; n < 70; ++n)
    EXPECT_EQ(evaluate(h + mod(-h, Expr(8)) - Expr(2), [&](Expr) { return n; }), (n / 4 + 7) / 8 * 8 - 2);
}

TEST(Sym, WhatIsBelowAQuotientIsBelowItsMultiples) {
  const Expr a = size_symbol(0), half = floordiv(a, Expr(2)), quarter = floordiv(a, Expr(4));
  const Expr i = var_below("bq.half", half), j = var_below("bq.quarter", quarter);
  EXPECT_TRUE(proven_lt(2 * i + 1, a));
  EXPECT_FALSE(proven_lt(2 * i + 2, a));
  EXPECT_TRUE(proven_lt(2 * j + 1, half));
  EXPECT_FALSE(proven_lt(2 * j + 2, half));
  EXPECT_TRUE(proven_lt(4 * j + 3, a));
  EXPECT_TRUE(proven_le(2 * half, a));
  EXPECT_FALSE(proven_le(a, 2 * half));
  EXPECT_TRUE(proven_lt(a, 2 * half + 2));
  EXPECT_FALSE(proven_lt(a, 2 * half + 1));
  EXPECT_TRUE(proven_le(3 * floordiv(a, Expr(2)), 2 * a));
  EXPECT_FALSE(proven_le(2 * a, 3 * floordiv(a, Expr(2))));
}

TEST(Sym, SumsDivideWhatWasMultipliedByThem) {
  const Expr a = size_symbol(0), h = floordiv(size_symbol(1), Expr(2)) - 3, w = floordiv(size_symbol(2), Expr(2)) - 3;
  const Expr x = var_below("bs.a", a), y = var_below("bs.h", h), z = var_below("bs.w", w);
  const Expr flat = x * h * w + y * w + z;
  EXPECT_EQ(mod(flat, w), z);
  EXPECT_EQ(floordiv(flat, w), x * h + y);
  EXPECT_EQ(floordiv(floordiv(flat, w), h), x);
  EXPECT_EQ(mod(floordiv(flat, w), h), y);
  EXPECT_EQ(floordiv(64 * flat + 5, 64 * w).str(), (x * h + y).str());
  EXPECT_EQ(floordiv((a + 1) * a, a + 1), a);
  const Expr all = var_below("bs.all", a * h * w), rows = floordiv(all, w);
  EXPECT_EQ(h * w * floordiv(rows, h) + w * mod(rows, h) + mod(all, w), all);
  // Nothing says that h is not 0 where nothing lies below it; a rest that may be negative is none.
  EXPECT_EQ(floordiv(x * h, h).kind(), Kind::kFloorDiv);
  EXPECT_EQ(mod(x * h - z, h).kind(), Kind::kMod);
}

TEST(Sym, ReshapeThereAndBackIsTheIdentity) {
  Expr a = loop("i0", 6), b = loop("i1", 8);
  Expr flat = a * 8 + b;
  EXPECT_EQ(floordiv(flat, 8), a);
  EXPECT_EQ(mod(flat, 8), b);
  EXPECT_EQ(floordiv(flat, 4), 2 * a + floordiv(b, 4));
  EXPECT_EQ(mod(flat, 4), mod(b, 4));
  EXPECT_EQ(mod(floordiv(flat, 4), 2), floordiv(b, 4));
  Expr f = loop("i0", 48);
  EXPECT_EQ(floordiv(f, 8) * 8 + mod(f, 8), f);
  EXPECT_EQ((floordiv(f, 8) * 8 + mod(f, 8)) * 3 + 1, f * 3 + 1);
  EXPECT_EQ(floordiv(f, 48), Expr(0));
  EXPECT_EQ(mod(f, 48), f);
  EXPECT_EQ(floordiv(floordiv(f, 2), 3), floordiv(f, 6));
}

TEST(Sym, SplitsThroughACommonDivisor) {
  Expr a = loop("i0", 5), b = loop("i1", 3), c = loop("i2", 4);
  EXPECT_EQ(floordiv(12 * a + 4 * b + c, 8).str(), floordiv(3 * a + b, 2).str());
  EXPECT_EQ(mod(12 * a + 4 * b + c, 8), 4 * mod(3 * a + b, 2) + c);
  EXPECT_EQ(floordiv(12 * a + 4 * b + c, 12), a);
  EXPECT_EQ(mod(12 * a + 4 * b + c, 12), 4 * b + c);
}

TEST(Sym, SymbolicDivisor) {
  Expr n = size("n0"), a = loop("i0", 10);
  EXPECT_EQ(floordiv(n * a, n), a);
  EXPECT_EQ(mod(n * a, n), Expr(0));
  EXPECT_EQ(floordiv(n * 6, n * 2), Expr(3));
  EXPECT_EQ(coefficient(n * a * 3 + 2, a), std::optional(n * 3));
}

TEST(Sym, MinMaxUseRanges) {
  Expr a = loop("i0", 10), n = size("n0");
  EXPECT_EQ(min(a, Expr(9)), a);
  EXPECT_EQ(min(a, Expr(20)), a);
  EXPECT_EQ(max(a, a + 3), a + 3);
  EXPECT_EQ(max(n, Expr(1)), n);
  EXPECT_EQ(min(a, n).str(), "min(i0.10, n0)");
  EXPECT_EQ(min(min(a, n), a), min(n, a));
}

TEST(Sym, ProvesFactsFromRanges) {
  Expr a = loop("i0", 10), n = size("n0");
  EXPECT_TRUE(known_lt(a, Expr(10)));
  EXPECT_FALSE(known_lt(a, Expr(9)));
  EXPECT_TRUE(known_le(Expr(1), n));
  EXPECT_TRUE(known_ne(4 * a, 8 * n + 2));
  EXPECT_FALSE(known_ne(4 * a, 8 * n));
  EXPECT_TRUE(known_divisible(4 * a + 8, 4));
  EXPECT_FALSE(known_divisible(4 * a + 7, 4));
}

TEST(Sym, Strides) {
  Expr a = loop("i0", 10), b = loop("i1", 7);
  EXPECT_EQ(coefficient(a * 14 + b * 2 + 5, b), std::optional(Expr(2)));
  EXPECT_EQ(coefficient(a, b), std::optional(Expr(0)));
  EXPECT_EQ(coefficient(mod(a + b, 5), b), std::nullopt);
}

TEST(Sym, SizeSymbolsAreKnownByName) {
  EXPECT_EQ(parse("2*s7 + 1").str(), "2*s7 + 1");  // before anyone asked for it
  const Expr s = size_symbol(7);
  EXPECT_EQ(parse("s7"), s);
  EXPECT_EQ(s.range(), kSizeSymbolRange);
  EXPECT_EQ(size_symbol_index(s), 7);
  EXPECT_EQ(size_symbol_index(s + 1), std::nullopt);
  EXPECT_EQ(size_symbol_index(size("n0")), std::nullopt);
  EXPECT_TRUE(has_size_symbol(floordiv(3 * s, size("n0"))));
  EXPECT_FALSE(has_size_symbol(size("n0") + 1));
  EXPECT_THROW(parse("s4096"), UserError);
  EXPECT_THROW(parse("s07"), UserError);
  EXPECT_THROW((s + 1).value(), Declined) << "a program that a number is needed for";
  EXPECT_THROW(size("n0").value(), InternalError);
}

TEST(Sym, LoopsOverSymbolsStayBelowThem) {
  const Expr m = size_symbol(0), n = size_symbol(1);
  const Expr i = var_below("bi.s0", m), j = var_below("bj.s1", n), k = var_below("bk.8", 8);
  EXPECT_EQ(extent_of(i), m);
  EXPECT_EQ(extent_of(k), Expr(8));
  EXPECT_TRUE(known_lt(i, m));
  EXPECT_FALSE(known_lt(i, n));
  EXPECT_FALSE(known_lt(i + 1, m));
  EXPECT_TRUE(known_le(i + 1, m));
  EXPECT_TRUE(known_lt(i * n + j, m * n));
  EXPECT_FALSE(known_lt(i * n + j + 1, m * n));
  EXPECT_TRUE(known_lt((i * n + j) * 8 + k, 8 * m * n));
  EXPECT_FALSE(known_le(n, m * n)) << "m may be 0";
  EXPECT_TRUE(known_le(n, m * n + n));
  EXPECT_FALSE(known_le(2 * n + 1, m * n));
  EXPECT_FALSE(known_ne(m * n, n));
  EXPECT_FALSE(known_ne(m * n + n, n));
  EXPECT_TRUE(known_ne(m * n + n, n - 1));
  EXPECT_EQ(floordiv(8 * m * n, n), 8 * m) << "what divides is not 0";
  EXPECT_EQ(mod(8 * m * n, n), Expr(0));
  EXPECT_EQ(floordiv(12 * m, 18 * n), floordiv(2 * m, 3 * n)) << "in lowest terms";
  EXPECT_EQ(mod(12 * m, 18 * n), 6 * mod(2 * m, 3 * n));
  EXPECT_EQ(floordiv(i * n + j, n), i);
  EXPECT_EQ(mod(i * n + j, n), j);
  EXPECT_EQ(floordiv((i * n + j) * 8 + k, 8 * n), i);
  EXPECT_EQ(mod((i * n + j) * 8 + k, 8 * n), 8 * j + k);
  EXPECT_EQ(mod(i, m), i);
  EXPECT_FALSE(mod(i, n) == i);
  const Expr flat = var_below("bf.s0*s1", m * n);
  EXPECT_EQ(mod(flat, n) + n * floordiv(flat, n), flat);
  EXPECT_EQ(256 * mod(flat, n) + k + 256 * n * floordiv(flat, n), 256 * flat + k);
  EXPECT_EQ(m * mod(flat, n) + m * n * floordiv(flat, n), m * flat);
  EXPECT_FALSE(mod(flat, n) + 2 * n * floordiv(flat, n) == flat);
  EXPECT_THROW(var_below("bi.s0", n), InternalError);
}

TEST(Sym, ErrorsName) {
  EXPECT_THROW(parse("2 +"), UserError);
  EXPECT_THROW(parse("nosuchvariable"), UserError);
  EXPECT_THROW(parse("3 // 0"), UserError);
  EXPECT_THROW(parse("(1"), UserError);
  EXPECT_THROW(parse("99999999999999999999"), UserError);
  EXPECT_THROW(Expr(INT64_MAX) + Expr(1), InternalError);
  try {
    parse("2 + $");
    FAIL();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("column 5"), std::string::npos) << e.what();
  }
  loop("i0", 10);
  EXPECT_THROW(var("i0.10", {0, 3}, 0), InternalError);
}

TEST(Sym, ThreadsAgreeOnNodes) {
  std::vector<Expr> results(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&results, t] {
      Expr sum = 0;
      for (int i = 0; i < 200; ++i) sum += floordiv(loop("t" + std::to_string(i), 100 + i), 7) * (5000 + i);
      results[t] = sum;
    });
  for (auto& t : threads) t.join();
  for (int t = 1; t < 4; ++t) EXPECT_EQ(results[0], results[t]);
}

// The same over sizes that are symbols: quotients by sums of them, and what is proven of any of them.
class SizeFuzz : public ::testing::TestWithParam<int> {};

TEST_P(SizeFuzz, ProofsHoldForAllSizes) {
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  const auto pick = [&](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(random); };
  const auto floor_div = [](int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); };
  constexpr int kAssignments = 16;
  struct Made {
    Expr e;
    std::vector<int64_t> values;
  };
  std::vector<Made> pool;
  for (int k = 0; k < 3; ++k) {
    Made size{size_symbol(k), {}};
    for (int i = 0; i < kAssignments; ++i) size.values.push_back(i < 4 ? i : pick(0, 40));
    pool.push_back(size);
  }
  for (int step = 0; step < 40; ++step) {
    const Made a = pool[static_cast<size_t>(pick(0, static_cast<int64_t>(pool.size()) - 1))];
    const Made b = pool[static_cast<size_t>(pick(0, static_cast<int64_t>(pool.size()) - 1))];
    const int64_t n = pick(2, 6), op = pick(0, 7);
    const auto is_large = [](int64_t v) { return std::abs(v) > 100000; };
    if (a.e.str().size() + b.e.str().size() > 120 || std::ranges::any_of(a.values, is_large)) continue;
    const bool divides = op == 5 || op == 6;
    if (divides && std::ranges::any_of(b.values, [](int64_t v) { return v == 0; })) continue;
    Made r;
    switch (op) {
      case 0:
        r.e = a.e + b.e;
        break;
      case 1:
        r.e = a.e - b.e;
        break;
      case 2:
        r.e = a.e * Expr(n) - Expr(pick(-3, 3));
        break;
      case 3:
        r.e = a.e * b.e;
        break;
      case 4:
        r.e = floordiv(a.e, n);
        break;
      case 5:
        r.e = floordiv(a.e, b.e);
        break;
      case 6:
        r.e = mod(a.e, b.e);
        break;
      default:
        r.e = a.e + Expr(n);
        break;
    }
    const auto at = [&](Expr e, size_t i) {
      return evaluate(e, [&](Expr v) { return pool[static_cast<size_t>(*size_symbol_index(v))].values[i]; });
    };
    for (size_t i = 0; i < kAssignments; ++i) {
      const int64_t x = a.values[i], y = b.values[i], got = at(r.e, i);
      const int64_t wanted = op == 0   ? x + y
                             : op == 1 ? x - y
                             : op == 3 ? x * y
                             : op == 4 ? floor_div(x, n)
                             : op == 5 ? floor_div(x, y)
                             : op == 6 ? x - y * floor_div(x, y)
                                       : got;
      ASSERT_EQ(got, wanted) << r.e.str() << " of " << a.e.str() << " and " << b.e.str() << " op " << op;
      r.values.push_back(got);
    }
    const bool lt = proven_lt(a.e, r.e), le = proven_le(r.e, b.e), ne = proven_ne(b.e, r.e);
    for (size_t i = 0; i < kAssignments; ++i) {
      ASSERT_TRUE(!lt || a.values[i] < r.values[i]) << a.e.str() << " < " << r.e.str();
      ASSERT_TRUE(!le || r.values[i] <= b.values[i]) << r.e.str() << " <= " << b.e.str();
      ASSERT_TRUE(!ne || b.values[i] != r.values[i]) << b.e.str() << " != " << r.e.str();
    }
    pool.push_back(r);
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, SizeFuzz, ::testing::Range(0, 2000));

// Random expressions: a value computed alongside by plain arithmetic must equal evaluate(), lie in range(), survive
// print -> parse as the same node, and survive substitution.
class Fuzz : public ::testing::TestWithParam<int> {};

struct Sample {
  Expr e;
  std::vector<int64_t> values;  // under each assignment
};

TEST_P(Fuzz, AgreesWithPlainArithmetic) {
  std::mt19937 random(GetParam());
  auto pick = [&](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(random); };
  constexpr int kAssignments = 12;
  std::vector<Expr> vars;
  std::vector<Sample> pool;
  std::vector<std::map<const Node*, int64_t>> assignment(kAssignments);
  int64_t extents[] = {1, 2, 3, 4, 6, 8, 12, 16, 24};
  for (int i = 0; i < 4; ++i) {
    int64_t extent = extents[pick(0, 8)];
    Expr v = loop("f" + std::to_string(i), extent);
    Sample s{v, {}};
    for (auto& a : assignment) s.values.push_back(a[v.node()] = pick(0, extent - 1));
    vars.push_back(v);
    pool.push_back(s);
  }
  for (int i = 0; i < 3; ++i) {
    int64_t c = pick(-9, 9);
    pool.push_back({Expr(c), std::vector<int64_t>(kAssignments, c)});
  }
  auto floor_div = [](int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); };  // b > 0
  for (int step = 0; step < 60; ++step) {
    const Sample a = pool[pick(0, static_cast<int64_t>(pool.size()) - 1)];
    const Sample b = pool[pick(0, static_cast<int64_t>(pool.size()) - 1)];
    int64_t n = extents[pick(1, 8)];
    int64_t op = pick(0, 7);
    bool big = false;
    for (int64_t v : a.values) big |= std::abs(v) > 100000;
    if (big) continue;
    Sample r;
    switch (op) {
      case 0:
        r.e = a.e + b.e;
        break;
      case 1:
        r.e = a.e - b.e;
        break;
      case 2:
        r.e = a.e * Expr(n);
        break;
      case 3:
        r.e = a.e * b.e;
        break;
      case 4:
        r.e = floordiv(a.e, n);
        break;
      case 5:
        r.e = mod(a.e, n);
        break;
      case 6:
        r.e = min(a.e, b.e);
        break;
      case 7:
        r.e = max(a.e, b.e);
        break;
    }
    if (r.e.str().size() > 400) continue;
    for (int i = 0; i < kAssignments; ++i) {
      int64_t x = a.values[i], y = b.values[i];
      int64_t v[] = {x + y,          x - y,         x * n, x * y, floor_div(x, n), x - n * floor_div(x, n),
                     std::min(x, y), std::max(x, y)};
      r.values.push_back(v[op]);
      int64_t got = evaluate(r.e, [&](Expr var) { return assignment[i].at(var.node()); });
      ASSERT_EQ(got, v[op]) << r.e.str() << " from " << a.e.str() << " op " << op << " " << b.e.str() << " n=" << n;
      ASSERT_LE(r.e.range().lo, got) << r.e.str();
      ASSERT_GE(r.e.range().hi, got) << r.e.str();
    }
    for (size_t i = 0; i < kSamples; ++i) {
      const int64_t there = evaluate(r.e, [&](Expr var) { return samples(var)[i]; });
      ASSERT_EQ(samples(r.e)[i], there) << r.e.str() << " at place " << i;
    }
    ASSERT_EQ(parse(r.e.str()), r.e) << r.e.str() << " vs " << parse(r.e.str()).str();
    Expr replaced = substitute(r.e, [&](Expr v) { return std::optional(Expr(assignment[0].at(v.node()))); });
    ASSERT_EQ(replaced, Expr(r.values[0])) << r.e.str();
    bool lt = known_lt(a.e, b.e), ne = known_ne(a.e, b.e);
    for (int i = 0; i < kAssignments; ++i) {
      ASSERT_TRUE(!lt || a.values[i] < b.values[i]);
      ASSERT_TRUE(!ne || a.values[i] != b.values[i]);
    }
    pool.push_back(r);
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, Fuzz, ::testing::Range(0, 300));

TEST(Sym, QuotientsOfMultiplesAreMultipliedOut) {
  const Expr s = size_symbol(0), t = size_symbol(1), padded = s + mod(-s, Expr(7));
  EXPECT_EQ(Expr(7) * floordiv(padded, Expr(7)), padded);
  EXPECT_EQ(Expr(14) * t * floordiv(padded, Expr(7)), Expr(2) * t * padded);
  EXPECT_FALSE(Expr(7) * floordiv(s, Expr(7)) == s);
}

TEST(Sym, PlacesAreWithinTheRanges) {
  const Expr s = size_symbol(0), i = var_below("place.s0", s), digit = var("place.digit", {-3, 6}, 0);
  for (size_t k = 0; k < kSamples; ++k) {
    EXPECT_GE(samples(s)[k], 0);
    EXPECT_GE(samples(digit)[k], -3);
    EXPECT_LE(samples(digit)[k], 6);
    if (samples(s)[k] == 0)
      EXPECT_EQ(samples(i)[k], kNoSample) << "no loop runs there";
    else
      EXPECT_LT(samples(i)[k], samples(s)[k]);
  }
  EXPECT_TRUE(somewhere_above(s, Expr(100)));
  EXPECT_TRUE(somewhere_equal(s, 2 * s)) << "where it is 0";
  EXPECT_FALSE(somewhere_apart(s * 2, s + s));
  EXPECT_FALSE(somewhere_not_below(i, s));
}

TEST(Sym, WhatOverflowsOrDividesByZeroShowsNothing) {
  const Expr s = size_symbol(0), large = s * s * s * s * s * s;
  EXPECT_EQ(samples(large)[3] == kNoSample || samples(large)[4] == kNoSample, true);
  EXPECT_EQ(samples(floordiv(Expr(7), s))[0], kNoSample);
}

TEST(Sym, WholeQuotients) {
  const Expr u = data_size_symbol(0), v = data_size_symbol(1), least = min(Expr(1000), u);
  EXPECT_EQ(whole_quotient(Expr(20) * least, least), Expr(20));
  EXPECT_EQ(whole_quotient(Expr(20) * u + Expr(20) * v, u + v), Expr(20));
  EXPECT_EQ(whole_quotient(u * v * Expr(3), v), u * Expr(3));
  EXPECT_EQ(whole_quotient(u + Expr(1009), u), std::nullopt);
  const Expr half = floordiv(u, Expr(2)), frames = half - Expr(1);
  EXPECT_EQ(whole_quotient(v * frames * Expr(32), v * frames), Expr(32));
  EXPECT_EQ(whole_quotient((u + v) * frames * u, frames * (u + v)), u);
  EXPECT_EQ(whole_quotient((u + v) * (u - v), u - v), u + v);
  EXPECT_EQ(whole_quotient((u + v) * (u - v) + Expr(1), u - v), std::nullopt);
  EXPECT_EQ(whole_quotient(Expr(6) * u, Expr(4)), std::nullopt);
  EXPECT_EQ(whole_quotient(Expr(0), u + v), Expr(0));
}

}  // namespace
}  // namespace flashover::sym
