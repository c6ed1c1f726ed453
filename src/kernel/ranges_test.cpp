// Each instruction that has a range, and where ranges end.
#include "kernel/ranges.h"

#include <gtest/gtest.h>

namespace flashover::kernel {
namespace {

using loops::Instr;
using loops::Op;

// A body of 64-bit integers: an index in [0, 99], a constant, and what a test adds.
struct Body {
  loops::Stage stage;
  Body() {
    const sym::Expr i = loops::loop_var('i', 0, 100);
    Instr index, constant;
    index.op = Op::k_index, index.dtype = DType::kI64, index.index = i;
    constant.op = Op::k_const, constant.dtype = DType::kI64, constant.integer = -7;
    stage.body = {index, constant};
  }
  std::optional<IntRange> add(Op op, std::array<loops::Id, 3> args, DType dtype = DType::kI64) {
    Instr in;
    in.op = op, in.dtype = dtype, in.args = args;
    stage.body.push_back(in);
    return narrow_ranges(stage).back();
  }
};
constexpr loops::Id kIndex = 0, kSeven = 1, kNone = loops::kNone;

TEST(Ranges, IndicesAndConstants) {
  const NarrowRanges r = narrow_ranges(Body().stage);
  EXPECT_EQ(r[kIndex], (IntRange{0, 99}));
  EXPECT_EQ(r[kSeven], (IntRange{-7, -7}));
}

TEST(Ranges, Arithmetic) {
  EXPECT_EQ(Body().add(Op::k_neg, {kIndex, kNone, kNone}), (IntRange{-99, 0}));
  EXPECT_EQ(Body().add(Op::k_add, {kIndex, kSeven, kNone}), (IntRange{-7, 92}));
  EXPECT_EQ(Body().add(Op::k_sub, {kSeven, kIndex, kNone}), (IntRange{-106, -7}));
  EXPECT_EQ(Body().add(Op::k_mul, {kIndex, kSeven, kNone}), (IntRange{-693, 0}));
  EXPECT_EQ(Body().add(Op::k_minimum, {kIndex, kSeven, kNone}), (IntRange{-7, -7}));
  EXPECT_EQ(Body().add(Op::k_maximum, {kIndex, kSeven, kNone}), (IntRange{0, 99}));
}

TEST(Ranges, AChoiceIsOneOfItsArms) {
  Body b;
  b.add(Op::k_gt, {kIndex, kSeven, kNone}, DType::kBool);
  EXPECT_EQ(b.add(Op::k_where, {2, kIndex, kSeven}), (IntRange{-7, 99}));
}

TEST(Ranges, ConversionsHaveTheRangeOfTheirDtype) {
  for (auto [from, range] : {std::pair{DType::kBool, std::optional(IntRange{0, 1})},
                             {DType::kU8, IntRange{INT16_MIN, UINT16_MAX}},
                             {DType::kI32, IntRange{INT32_MIN, INT32_MAX}},
                             {DType::kU32, std::nullopt},
                             {DType::kF32, std::nullopt}}) {
    Body b;
    b.add(Op::k_load, {kNone, kNone, kNone}, from);
    EXPECT_EQ(b.add(Op::k_convert, {2, kNone, kNone}), range) << info(from).name;
  }
}

TEST(Ranges, EndWhereAValueNeeds64Bits) {
  Body b;
  b.stage.body[kSeven].integer = INT32_MAX;
  EXPECT_EQ(b.add(Op::k_add, {kIndex, kSeven, kNone}), std::nullopt);  // 2
  EXPECT_EQ(b.add(Op::k_minimum, {2, kIndex, kNone}), std::nullopt);   // of it: computed in 64 bits
  EXPECT_EQ(b.add(Op::k_load, {kNone, kNone, kNone}), std::nullopt);   // anything
  EXPECT_EQ(b.add(Op::k_shift_left, {kIndex, kIndex, kNone}), std::nullopt);
}

TEST(Ranges, BelongTo64BitIntegersOnly) {
  EXPECT_EQ(Body().add(Op::k_convert, {kIndex, kNone, kNone}, DType::kI32), std::nullopt);
}

}  // namespace
}  // namespace flashover::kernel
