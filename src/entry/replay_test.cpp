// When gradients of a replay are taken for those of the compiled backward.
#include "entry/replay.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

namespace flashover::entry {
namespace {

constexpr Replay::Tolerance kTolerance{1e-3, 1e-4};
at::Tensor pair(float a, float b) { return at::tensor({a, b}); }

TEST(Replay, GradientsAreSameWhereTheyDifferByRounding) {
  EXPECT_TRUE(are_same_gradients({pair(1, 2), {}}, {pair(1, 2.001F), {}}, kTolerance));
  EXPECT_FALSE(are_same_gradients({pair(1, 2)}, {pair(1, 2.01F)}, kTolerance));
  EXPECT_FALSE(are_same_gradients({pair(1, 2)}, {pair(2, 4)}, kTolerance));
}

TEST(Replay, AGradientThatIsZeroButForRoundingIsHeldToTheLargest) {
  EXPECT_TRUE(are_same_gradients({pair(1, 2), pair(1e-5F, 0)}, {pair(1, 2), pair(-1e-5F, 0)}, kTolerance));
  EXPECT_FALSE(are_same_gradients({pair(1e-5F, 0)}, {pair(-1e-5F, 0)}, kTolerance));
}

TEST(Replay, WhereOneHasNoneTheOtherIsZeros) {
  EXPECT_TRUE(are_same_gradients({pair(0, 0)}, {{}}, kTolerance));
  EXPECT_FALSE(are_same_gradients({{}}, {pair(0, 1)}, kTolerance));
}

TEST(Replay, IllConditionedGradientsMayDiffer) {
  EXPECT_TRUE(are_same_gradients({pair(1, 2)}, {pair(3, 1)}, kTolerance, {pair(2, 1)}));
  EXPECT_FALSE(are_same_gradients({pair(1, 2)}, {pair(2, 4)}, kTolerance, {pair(2, 4.001F)}));
}

TEST(Replay, MovedInputsKeepWhatTheyAre) {
  const at::Tensor leaf = pair(1, -2).requires_grad_(), index = at::tensor({1, 2});
  const auto moved = Replay::moved({leaf, index, {}});
  EXPECT_TRUE(moved[0].requires_grad() && moved[0].is_leaf() && !moved[0].equal(leaf));
  EXPECT_TRUE(moved[0].allclose(leaf, 1e-5, 0));
  EXPECT_TRUE(moved[1].is_same(index) && !moved[2].defined());
}

}  // namespace
}  // namespace flashover::entry
