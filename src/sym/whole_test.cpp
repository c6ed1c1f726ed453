// Whole numbers of sizes, by floats and by expressions.
#include "sym/whole.h"

#include <gtest/gtest.h>

#include <cmath>

namespace flashover::sym {
namespace {

void agrees(const WholeFunction& f) {
  const auto line = line_through(f, 0, 16384);
  ASSERT_TRUE(line.has_value());
  for (int64_t n = 0; n <= 16384; ++n) {
    const auto at = static_cast<double>(n);
    ASSERT_EQ(std::floor(static_cast<double>(line->slope * n + line->start) / static_cast<double>(line->by)), f(at))
        << n;
  }
}

TEST(Whole, GoesThroughEveryValue) {
  for (double factor : {0.5, 1.3, 2.0, 0.3333333333333333, 1.1, 0.875, 2.5, 1e-3})
    agrees([=](double n) { return std::floor(n * factor); });
  for (double by : {2.0, 3.0, 7.0, 16.0, 1.5}) {
    agrees([=](double n) { return std::floor(n / by); });
    agrees([=](double n) { return std::ceil(n / by); });
  }
  agrees([](double n) { return std::nearbyint(n / 3); });
  agrees([](double n) { return n + 1; });
}

TEST(Whole, NoLineIsNoAnswer) {
  EXPECT_FALSE(line_through([](double n) { return std::floor(n * 0.7); }, 0, 16384));
  EXPECT_FALSE(line_through([](double n) { return std::floor(n * 0.29); }, 0, 16384));  // 28 of 100, 87 of 300
  EXPECT_FALSE(line_through([](double n) { return std::floor(std::sqrt(n)); }, 0, 16384));
  EXPECT_FALSE(line_through([](double n) { return std::nearbyint(n / 2); }, 0, 16384));  // halves go to even
  EXPECT_FALSE(line_through([](double n) { return n / 2; }, 0, 16384));
}

TEST(Whole, TheLimitIsAGuard) {
  Environment sizes;
  const Expr n = sizes.add(10);
  const auto half = whole_of(sizes, n, [](double v) { return std::floor(v * 0.5); });
  ASSERT_TRUE(half.has_value());
  EXPECT_EQ(*half, floordiv(n, Expr(2)));
  ASSERT_EQ(sizes.guards().size(), 1u);
  EXPECT_EQ(str(sizes.guards()[0]), "s0 <= 16384");
}

}  // namespace
}  // namespace flashover::sym
