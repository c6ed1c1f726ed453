// Corners of scalar operations, each as torch 2.11 gives it.
#include "ops/scalar.h"

#include <gtest/gtest.h>

namespace flashover::ops {
namespace {

double of_floats(Prim op, DType dtype, double a, double b = 0) { return compute(op, dtype, {a}, {b}).f; }
int64_t of_ints(Prim op, DType dtype, int64_t a, int64_t b = 0) { return compute(op, dtype, {0, a}, {0, b}).i; }

TEST(Scalar, FloatsRoundToTheirType) {
  EXPECT_EQ(of_floats(Prim::add, DType::kF32, 16777216, 1), 16777216);
  EXPECT_EQ(of_floats(Prim::add, DType::kF64, 16777216, 1), 16777217);
}

TEST(Scalar, NanWinsOrLoses) {
  EXPECT_TRUE(std::isnan(of_floats(Prim::minimum, DType::kF32, NAN, 1)));
  EXPECT_TRUE(std::isnan(of_floats(Prim::maximum, DType::kF32, 1, NAN)));
  EXPECT_EQ(of_floats(Prim::fmin, DType::kF32, NAN, 1), 1);
  EXPECT_TRUE(std::isnan(of_floats(Prim::relu, DType::kF32, NAN)));
  EXPECT_EQ(of_floats(Prim::sign, DType::kF32, NAN), 0);
}

TEST(Scalar, DivisionsRoundAsPythonOrAsC) {
  EXPECT_EQ(of_ints(Prim::floordiv, DType::kI32, -7, 2), -4);
  EXPECT_EQ(of_ints(Prim::truncdiv, DType::kI32, -7, 2), -3);
  EXPECT_EQ(of_ints(Prim::remainder, DType::kI32, -7, 2), 1);
  EXPECT_EQ(of_ints(Prim::fmod, DType::kI32, -7, 2), -1);
  EXPECT_EQ(of_ints(Prim::floordiv, DType::kI64, INT64_MIN, -1), INT64_MIN);
  EXPECT_EQ(of_floats(Prim::remainder, DType::kF64, -7, 2), 1);
  EXPECT_EQ(of_floats(Prim::floordiv, DType::kF32, 1, 0), INFINITY);
}

TEST(Scalar, IntegersWrap) {
  EXPECT_EQ(of_ints(Prim::add, DType::kI8, 127, 1), -128);
  EXPECT_EQ(of_ints(Prim::neg, DType::kU8, 1), 255);
  EXPECT_EQ(of_ints(Prim::mul, DType::kI32, 1 << 20, 1 << 12), 0);
  EXPECT_EQ(of_ints(Prim::abs, DType::kI64, INT64_MIN), INT64_MIN);
  EXPECT_EQ(of_ints(Prim::add, DType::kBool, 1, 1), 1);
  EXPECT_EQ(of_ints(Prim::bitwise_not, DType::kBool, 1), 0);
}

TEST(Scalar, PowersAndShiftsBeyondTheType) {
  EXPECT_EQ(of_ints(Prim::pow, DType::kI64, 2, -1), 0);
  EXPECT_EQ(of_ints(Prim::pow, DType::kI64, -1, -3), -1);
  EXPECT_EQ(of_ints(Prim::shift_left, DType::kI64, 1, 64), 0);
  EXPECT_EQ(of_ints(Prim::shift_right, DType::kI64, -1, 64), -1);
}

TEST(Scalar, BesselFunctionOverItsRange) {
  for (double x = 0; x < 713; x += 0.37) {
    const double right = std::cyl_bessel_i(0, x);
    EXPECT_NEAR(of_floats(Prim::i0, DType::kF64, -x), right, 5e-13 * right) << x;
  }
  EXPECT_EQ(of_floats(Prim::i0, DType::kF64, -INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(of_floats(Prim::i0, DType::kF64, NAN)));
}

TEST(Scalar, ComparisonsGiveBools) {
  EXPECT_EQ(compute(Prim::lt, DType::kF32, {NAN}, {1}).i, 0);
  EXPECT_EQ(compute(Prim::ne, DType::kF32, {NAN}, {NAN}).i, 1);
  EXPECT_EQ(compute(Prim::gt, DType::kU64, {0, -1}, {0, 1}).i, 1) << "unsigned";
  EXPECT_EQ(compute(Prim::where, DType::kBool, {0, 1}, {2.5}, {3.5}).f, 2.5);
}

TEST(Scalar, ConversionsTruncateAndWrap) {
  EXPECT_EQ(convert(DType::kF32, DType::kI64, {-2.9}).i, -2);
  EXPECT_EQ(convert(DType::kI64, DType::kU8, {0, 257}).i, 1);
  EXPECT_EQ(convert(DType::kF32, DType::kBool, {NAN}).i, 1);
  EXPECT_EQ(convert(DType::kI64, DType::kF32, {0, 16777217}).f, 16777216);
  EXPECT_EQ(convert(DType::kU64, DType::kF64, {0, -1}).f, 18446744073709551616.0);
}

}  // namespace
}  // namespace flashover::ops
