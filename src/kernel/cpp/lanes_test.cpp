// Index expressions as matrices, divisions and gathers make them.
#include "kernel/cpp/lanes.h"

#include <gtest/gtest.h>

namespace flashover::kernel::cpp {
namespace {

using sym::Expr;

const Expr kRow = loops::loop_var('i', 0, 100), kLane = loops::loop_var('i', 1, 64);
const Expr kGathered = loops::loop_var('t', 3, 50);
constexpr int kWidth = 8;

LaneStep step(Expr e) {
  return lane_step(e, {kLane, kWidth}, [](Expr v) { return v == kGathered; });
}
bool varies(Expr e) { return step(e).kind == LaneStep::kVarying; }

TEST(Lanes, SumsAndMultiplesOfTheLaneHaveAStride) {
  EXPECT_TRUE(step(64 * kRow + 3).uniform());
  EXPECT_TRUE(step(64 * kRow + kLane).contiguous());
  EXPECT_EQ(step(kRow + 100 * kLane).stride, 100);
  EXPECT_EQ(step(5 - kLane).stride, -1);
  EXPECT_TRUE(step(64 * kRow + kLane - kLane).uniform());
}

TEST(Lanes, ProductsWithWhatIsNoConstantVary) {
  EXPECT_TRUE(varies(kRow * kLane));
  EXPECT_TRUE(varies(kLane * kLane));
  EXPECT_TRUE(varies(64 * kGathered + kLane));
}

TEST(Lanes, ProductsOfSizesAreSymbolicStrides) {
  const Expr height = sym::var("s0", {0, 1 << 20}, 7), width = sym::var("s1", {0, 1 << 20}, 9);
  const auto by = [](Expr e) { return symbolic_step(e, {kLane, kWidth}, [](Expr v) { return v == kGathered; }); };
  EXPECT_EQ(by(kRow + kLane * height * width), height * width);
  EXPECT_EQ(by(height * (3 * kLane + kRow) + 5), 3 * height);
  EXPECT_EQ(by(kRow * height), Expr(0));
  EXPECT_FALSE(by(kLane * kLane * height));
  EXPECT_FALSE(by(kLane * kGathered));
  EXPECT_FALSE(by(kLane * height + kLane * width));  // two terms: left to the lanes one by one
  EXPECT_FALSE(by(sym::floordiv(kLane * height, 3)));
}

TEST(Lanes, DivisionsKeepAStrideWhereVectorsStayWithinABlock) {
  EXPECT_TRUE(step(sym::floordiv(kLane, 32)).uniform());
  EXPECT_TRUE(step(sym::mod(kLane, 32)).contiguous());
  EXPECT_TRUE(step(sym::mod(64 * kRow + kLane, 32)).contiguous());
  EXPECT_TRUE(varies(sym::floordiv(kLane, 12)));      // 12 is no multiple of the width
  EXPECT_TRUE(varies(sym::mod(kLane + 1, 32)));       // vectors straddle blocks
  EXPECT_TRUE(varies(sym::floordiv(3 * kLane, 32)));  // a stride of more than 1
  EXPECT_TRUE(step(sym::floordiv(kRow, 12)).uniform());
}

loops::Instr in_range(Expr index, Expr lo, Expr hi) {
  loops::Instr in;
  in.op = loops::Op::k_in_range;
  in.index = index, in.lo = lo, in.hi = hi;
  return in;
}

TEST(Lanes, RangesThatBeginAndEndBetweenVectorsTestWholeVectors) {
  const LaneLoop lanes{kLane, kWidth};
  EXPECT_TRUE(tests_whole_vectors(in_range(kLane, 0, 32), lanes));
  EXPECT_TRUE(tests_whole_vectors(in_range(kLane, 16 * kRow, 64), lanes));
  EXPECT_FALSE(tests_whole_vectors(in_range(kLane, 0, 33), lanes));
  EXPECT_FALSE(tests_whole_vectors(in_range(kLane + 1, 0, 32), lanes));
  EXPECT_FALSE(tests_whole_vectors(in_range(kLane, 16 * kGathered, 64), lanes));
  EXPECT_FALSE(tests_whole_vectors(in_range(kRow, 0, 32), lanes));  // the same for all lanes anyway
}

}  // namespace
}  // namespace flashover::kernel::cpp
