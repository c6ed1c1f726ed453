// Accessors check the kind of what they are given; strides that follow from sizes.
#include "ops/args.h"

#include <gtest/gtest.h>

#include "ops/text.h"
#include "sym/environment.h"

namespace flashover::ops {
namespace {

Arg arg(std::string_view text) { return Cursor(text).arg(); }
TensorType type(std::string_view text) { return Cursor(text).type(); }
Sizes sizes(std::string_view text) { return as_sizes(arg(text)); }
std::string str(const Sizes& s) { return flashover::str(Arg(s)); }

TEST(Args, AccessorsConvertWhatConverts) {
  EXPECT_EQ(as_value(arg("%3")), 3);
  EXPECT_EQ(as_optional_value(arg("None")), std::nullopt);
  EXPECT_EQ(as_optional_value(Arg(Ref{})), std::nullopt) << "a tensor that is not there is None";
  EXPECT_EQ(as_expr(arg("true")), sym::Expr(1));
  EXPECT_EQ(as_ints(arg("5")), std::vector<int64_t>{5}) << "a single int is a list of one";
  EXPECT_TRUE(as_ints(arg("f[]")).empty() && as_values(arg("[]")).empty()) << "an empty list is one of any kind";
  EXPECT_TRUE(as_bool(arg("2")) && !as_bool(arg("0")));
  EXPECT_EQ(as_double(arg("3")), 3.0);
  EXPECT_EQ(as_dtype_or(arg("None"), DType::kI8), DType::kI8);
  EXPECT_EQ(as_device(arg("None")), Device{});
}

TEST(Args, AccessorsRefuseOtherKinds) {
  EXPECT_THROW(as_value(arg("None")), InternalError);
  EXPECT_THROW(as_value(arg("3")), InternalError);
  EXPECT_THROW(as_values(arg("[1]")), InternalError);
  EXPECT_THROW(as_int(arg("1.5")), InternalError);
  EXPECT_THROW(as_int(Arg(sym::var("args_n", {1, 9}, 3))), InternalError) << "not a constant";
  EXPECT_THROW(as_ints(arg("f[0.5]")), InternalError);
  EXPECT_THROW(as_dtype(arg("3")), InternalError);
}

TEST(Args, IsNumberKnowsTheSignOfZero) {
  EXPECT_TRUE(is_number(arg("0"), 0) && is_number(arg("0.0"), 0) && is_number(arg("false"), 0));
  EXPECT_FALSE(is_number(arg("-0.0"), 0));
  EXPECT_TRUE(is_number(arg("-0.0"), -0.0));
  EXPECT_FALSE(is_number(arg("None"), 0));
  EXPECT_FALSE(is_number(arg("nan"), NAN));
}

TEST(Args, WrapDim) {
  EXPECT_EQ(wrap_dim(-1, 3), 2);
  EXPECT_EQ(wrap_dim(-1, 0), 0) << "a 0-d tensor counts as rank one";
  EXPECT_THROW(wrap_dim(3, 3), InternalError);
  EXPECT_THROW(wrap_dim(-4, 3), InternalError);
}

TEST(Args, DenseLikeKeepsTheOrderOfDims) {
  EXPECT_EQ(str(dense_like(sizes("[2, 3, 4]"), sizes("[1, 100, 10]"))), "[1, 8, 2]");
  EXPECT_EQ(str(dense_like(sizes("[2, 3]"), sizes("[0, 1]"))), "[3, 1]") << "a stride of 0 has no order of its own";
  EXPECT_EQ(str(dense_like(sizes("[2, 1, 4]"), sizes("[4, 1, 1]"))), "[4, 4, 1]");
  EXPECT_EQ(str(dense_like(sizes("[2, 0]"), sizes("[1, 2]"))), "[1, 2]") << "an empty dim counts as one";
  EXPECT_EQ(str(dense_like(sizes("[2, 3]"), {})), "[3, 1]") << "unknown: row major";
}

TEST(Args, IsDense) {
  EXPECT_TRUE(is_dense(sizes("[2, 3]"), sizes("[1, 2]")));
  EXPECT_TRUE(is_dense(sizes("[2, 1]"), sizes("[1, 77]")));
  EXPECT_TRUE(is_dense(sizes("[2, 0]"), sizes("[9, 9]")));
  EXPECT_FALSE(is_dense(sizes("[2, 3]"), sizes("[4, 1]"))) << "gaps";
  EXPECT_FALSE(is_dense(sizes("[2, 3]"), sizes("[0, 1]"))) << "repeats";
}

// No size comes near the hint of one that is subtracted or divides.
TEST(Args, OrderOfStridesThatShrink) {
  const auto e = [](std::string_view text) { return sym::parse(text); };
  const sym::AssumeScope facts(
      {{sym::Relation::kLessEqual, 2, e("12 - s0")}, {sym::Relation::kLessEqual, 2, e("12 // s1")}});
  EXPECT_TRUE(is_smaller_stride(1, e("12 - s0")));
  EXPECT_FALSE(is_smaller_stride(e("12 - s0"), 1));
  EXPECT_FALSE(is_smaller_stride(e("12 - s0"), e("12 - s0")));
  EXPECT_TRUE(is_smaller_stride(e("s0"), e("4*s0")));
  EXPECT_TRUE(is_dense({12, e("12 - s0")}, {e("12 - s0"), 1}));
  EXPECT_TRUE(is_dense({12, e("12 // s1")}, {e("12 // s1"), 1}));
}

std::string viewed(std::string_view t, std::string_view as) {
  const auto strides = view_strides(type(t), sizes(as));
  return strides ? str(*strides) : "no view";
}
TEST(Args, ViewStrides) {
  EXPECT_EQ(viewed("f32[2,3,4]", "[6, 4]"), "[4, 1]");
  EXPECT_EQ(viewed("f32[4,2]{1,4}", "[2, 2, 2]"), "[2, 1, 4]");
  EXPECT_EQ(viewed("f32[2,3]{1,2}", "[6]"), "no view");
  EXPECT_EQ(viewed("f32[2,3]{6,2}", "[6]"), "[2]");
  EXPECT_EQ(viewed("f32[4,4]{8,1}", "[16]"), "no view") << "gaps between rows";
  EXPECT_EQ(viewed("f32[]", "[1, 1]"), "[1, 1]");
  EXPECT_EQ(viewed("f32[0,3]{5,1}", "[3, 0]"), "[1, 1]") << "of no elements: any";
  EXPECT_EQ(viewed("f32[4]opaque", "[2, 2]"), "no view");
}

TEST(Args, BroadcastSizes) {
  EXPECT_EQ(str(broadcast_sizes(sizes("[2, 1, 4]"), sizes("[3, 1]"))), "[2, 3, 4]");
  EXPECT_EQ(str(broadcast_sizes({}, sizes("[3]"))), "[3]");
  EXPECT_EQ(str(broadcast_sizes(sizes("[0]"), sizes("[1]"))), "[0]");
  EXPECT_THROW(broadcast_sizes(sizes("[2]"), sizes("[3]")), InternalError);
  const sym::Expr n = sym::var("args_m", {1, 9}, 3);
  EXPECT_THROW(broadcast_sizes({n}, sizes("[3]")), InternalError) << "equal by its hint is not provably equal";
}

}  // namespace
}  // namespace flashover::ops
