// From which size on expressions are two or more, and that it is so at each size.
#include "sym/rises.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace flashover::sym {
namespace {

using Rises = std::optional<std::vector<int64_t>>;
const Expr kN = size_symbol(0);

Expr round_up(Expr e, int64_t by) { return floordiv(e + Expr(by - 1), Expr(by)); }

TEST(Rises, WhereAGrowingExpressionPassesZeroAndOne) {
  EXPECT_EQ(rises_of(floordiv(kN, 2), kN, 2), (Rises{{4}}));
  EXPECT_EQ(rises_of(floordiv(kN, 4), kN, 2), (Rises{{4, 8}}));
  EXPECT_EQ(rises_of(round_up(round_up(kN, 32), 4), kN, 2), (Rises{{129}}));
  EXPECT_EQ(rises_of(min(kN, 16) - 3, kN, 2), (Rises{{4, 5}}));
  EXPECT_EQ(rises_of(kN + 1, kN, 2), Rises{std::vector<int64_t>{}});
}

TEST(Rises, WhatIsLeftOfPartsGoesUpAndDown) {
  EXPECT_EQ(rises_of(kN - floordiv(kN, 2), kN, 2), (Rises{{3}}));
  EXPECT_EQ(rises_of(kN - Expr(2) * round_up(kN, 3), kN, 2), (Rises{{3, 4, 5, 6, 7, 8}}));
  EXPECT_EQ(rises_of(kN + mod(-kN, 4), kN, 2), Rises{std::vector<int64_t>{}});
}

TEST(Rises, WhatNeverGetsThereOrIsOfTwoSizesIsLeft) {
  EXPECT_EQ(rises_of(mod(kN, 2), kN, 2), std::nullopt);
  EXPECT_EQ(rises_of(min(kN, 1), kN, 2), std::nullopt);
  EXPECT_EQ(rises_of(Expr(9) - kN, kN, 2), std::nullopt);
  EXPECT_EQ(rises_of(kN + size_symbol(1), kN, 2), std::nullopt);
  EXPECT_EQ(rises_of(kN - floordiv(kN, 5000), kN, 2), std::nullopt) << "a period that is too long";
}

TEST(Rises, EachSizeIsAsTheySay) {
  for (Expr e : {floordiv(kN, 3), kN - floordiv(kN + 2, 3), kN - Expr(2) * round_up(kN, 3),
                 floordiv(kN * 3, 7) - floordiv(kN, 5), floordiv(floordiv(kN - 1, 2) + 1, 2)}) {
    SCOPED_TRACE(e.str());
    const Rises rises = rises_of(e, kN, 2);
    ASSERT_TRUE(rises);
    const auto kind = [e](int64_t size) {
      return std::clamp<int64_t>(evaluate(e, [size](Expr) { return size; }), 0, 2);
    };
    for (int64_t size = 3; size < 200; ++size)
      EXPECT_EQ(kind(size) != kind(size - 1), std::ranges::count(*rises, size) == 1) << "at " << size;
    EXPECT_EQ(kind(1000), 2);
  }
}

}  // namespace
}  // namespace flashover::sym
