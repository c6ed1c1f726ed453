// Which strides follow from sizes.
#include "ops/geometry.h"

#include <gtest/gtest.h>

namespace flashover {
namespace {

std::vector<bool> spanned(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  return spanned_strides(sizes, strides);
}

TEST(Geometry, StridesThatSizesExplain) {
  using Answers = std::vector<bool>;
  EXPECT_EQ(spanned({2, 3, 4}, {12, 4, 1}), (Answers{true, true, true}));
  EXPECT_EQ(spanned({4, 3}, {1, 4}), (Answers{true, true})) << "transposed";
  EXPECT_EQ(spanned({2, 3, 4}, {30, 5, 1}), (Answers{false, false, true})) << "parts of parts";
  EXPECT_EQ(spanned({2, 3, 4}, {15, 5, 1}), (Answers{true, false, true})) << "a part's rows span what is around them";
  EXPECT_EQ(spanned({2, 0, 4}, {4, 4, 1}), (Answers{true, true, true})) << "an empty dimension counts as one element";
  EXPECT_EQ(spanned({3, 4, 5}, {0, 5, 1}), (Answers{false, true, false})) << "repeated: nothing spans 0";
  EXPECT_EQ(spanned({}, {}), Answers{});
}

TEST(Geometry, DimensionsFromWithin) {
  EXPECT_EQ(inner_first(std::vector<int64_t>{1, 12, 4}), (std::vector<size_t>{0, 2, 1}));
  EXPECT_EQ(inner_first(std::vector<int64_t>{4, 4, 1}), (std::vector<size_t>{2, 1, 0})) << "of equal ones the last";
}

}  // namespace
}  // namespace flashover
