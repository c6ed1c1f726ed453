// Folding the neutral element changes nothing, whatever the other value is.
#include "kernel/neutral.h"

#include <gtest/gtest.h>

#include <cmath>

namespace flashover::kernel {
namespace {

using loops::Reduce;

TEST(Neutral, SumsAndProducts) {
  EXPECT_EQ(neutral(Reduce::kSum, DType::kI64).integer, 0);
  EXPECT_EQ(neutral(Reduce::kProd, DType::kI64).integer, 1);
  EXPECT_EQ(neutral(Reduce::kProd, DType::kF32).number, 1);
  EXPECT_EQ(neutral(Reduce::kAny, DType::kBool).integer, 0);
  EXPECT_EQ(neutral(Reduce::kAll, DType::kBool).integer, 1);
}

TEST(Neutral, ExtremesStartAtTheOtherEndOfTheirDtype) {
  for (auto [max, min] : {std::pair{Reduce::kMax, Reduce::kMin}, {Reduce::kArgMax, Reduce::kArgMin}}) {
    EXPECT_EQ(neutral(max, DType::kF64).number, -INFINITY);
    EXPECT_EQ(neutral(min, DType::kF64).number, INFINITY);
    EXPECT_EQ(neutral(max, DType::kI64).integer, INT64_MIN);
    EXPECT_EQ(neutral(min, DType::kI64).integer, INT64_MAX);
    EXPECT_EQ(neutral(max, DType::kI8).integer, -128);
    EXPECT_EQ(neutral(min, DType::kI8).integer, 127);
    EXPECT_EQ(neutral(max, DType::kU8).integer, 0);
    EXPECT_EQ(neutral(min, DType::kU8).integer, 255);
    EXPECT_EQ(neutral(min, DType::kU32).integer, 0xffffffff);
    EXPECT_EQ(neutral(max, DType::kBool).integer, 0);
    EXPECT_EQ(neutral(min, DType::kBool).integer, 1);
  }
}

}  // namespace
}  // namespace flashover::kernel
