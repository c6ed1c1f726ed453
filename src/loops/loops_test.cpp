// Text that round-trips, the interpreter's answers, broken rules by name, half precision, random numbers.
#include "loops/loops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/check.h"
#include "loops/half.h"

namespace flashover::loops {
namespace {

constexpr const char* kSoftmax = R"(kernel "softmax" {
  p0 = f32[12] read
  p1 = f32[12] read write
  outer i0.3
  acc a0 = max f32
  acc a1 = sum f32
  vector inner
  cost 40
  stage j0.4 {
    v0 = load f32 p0[4*i0.3 + j0.4]
    v1 = reduce a0 v0
  }
  stage j0.4 {
    v0 = load f32 p0[4*i0.3 + j0.4]
    v1 = acc f32 a0
    v2 = sub f32 v0 v1
    v3 = exp f32 v2
    v4 = reduce a1 v3
    v5 = store p1[4*i0.3 + j0.4] v3
  }
  stage j0.4 {
    v0 = load f32 p1[4*i0.3 + j0.4]
    v1 = acc f32 a1
    v2 = div f32 v0 v1
    v3 = store p1[4*i0.3 + j0.4] v2
  }
}
)";

TEST(Loops, TextRoundTrips) {
  Kernel k = parse(kSoftmax);
  EXPECT_EQ(print(k), kSoftmax);
  verify(k);
  Kernel other = k;
  other.label = "x";
  EXPECT_EQ(identity(k), identity(other));
  other.accs[0].kind = Reduce::kMin;
  EXPECT_NE(identity(k), identity(other));
  EXPECT_EQ(depths(k.stages[1]), (std::vector<int>{1, 0, 1, 1, 1, 1}));
}

TEST(Loops, InterpretsStagesInOrder) {
  Kernel k = parse(kSoftmax);
  float in[12] = {1, 2, 3, 4, -1, -1, -1, -1, 100, 0, 0, 0}, out[12] = {};
  void* pointers[] = {in, out};
  EXPECT_EQ(interpret(k, pointers), 0);
  for (int r = 0; r < 3; ++r) {
    float sum = 0;
    for (int c = 0; c < 4; ++c) sum += std::exp(in[4 * r + c]);
    for (int c = 0; c < 4 && r < 2; ++c) EXPECT_NEAR(out[4 * r + c], std::exp(in[4 * r + c]) / sum, 1e-6);
  }
  EXPECT_FLOAT_EQ(out[8], 1);
}

TEST(Loops, IndirectChecksAndMasks) {
  constexpr const char* text = R"(kernel "gather" {
  p0 = bf16[5] read
  p1 = i64[4] read
  p2 = f32[4] write
  outer i0.4
  error 0 "index out of range"
  vector outer
  cost 3
  stage {
    v0 = load i64 p1[i0.4]
    v1 = in_range b8 [i0.4] [1] [4]
    v2 = indirect i64 t2.5 [5] v0 wrap error 0 if v1
    v3 = load f32 p0[t2.5] if v1
    v4 = store p2[i0.4] v3
  }
}
)";
  Kernel k = parse(text);
  verify(k);
  EXPECT_EQ(print(k), text);
  uint16_t x[5];
  for (int i = 0; i < 5; ++i) x[i] = float_to_bf16(static_cast<float>(i) + 0.5f);
  int64_t index[4] = {77, -1, 0, 4};
  float out[4];
  void* pointers[] = {x, index, out};
  EXPECT_EQ(interpret(k, pointers), 0);
  EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{0, 4.5, 0.5, 4.5}));
  index[2] = 5;
  EXPECT_EQ(interpret(k, pointers), 1);
}

TEST(Loops, VerifyNamesTheBrokenRule) {
  auto broken = [](auto&& change) {
    Kernel k = parse(kSoftmax);
    change(k);
    try {
      verify(k);
    } catch (const InternalError& e) {
      return std::string(e.what());
    }
    return std::string("nothing");
  };
  EXPECT_NE(broken([](Kernel& k) { k.stages[0].body[0].index = k.stages[0].body[0].index + 1; }).find("in range"),
            std::string::npos);
  EXPECT_NE(broken([](Kernel& k) { std::swap(k.stages[0], k.stages[1]); }).find("accumulators are read"),
            std::string::npos);
  EXPECT_NE(broken([](Kernel& k) { k.stages[1].body[2].args[1] = 3; }).find("earlier values"), std::string::npos);
  EXPECT_NE(broken([](Kernel& k) { k.stages[1].body[2].dtype = DType::kI32; }).find("dtype"), std::string::npos);
  EXPECT_NE(broken([](Kernel& k) { k.params[1].written = false; }).find("params say"), std::string::npos);
}

TEST(Loops, ParseErrorsNameTheLine) {
  try {
    parse("kernel {\n  outer i0.3\n  stage {\n    v0 = frobnicate f32 v1\n  }\n}\n");
    FAIL();
  } catch (const UserError& e) {
    EXPECT_STREQ(e.what(), "line 4: unknown operation 'frobnicate'");
  }
  EXPECT_THROW(parse("kernel {\n  outer i0.3"), UserError);
  EXPECT_THROW(parse("kernel {\n  p0 = f99[3]\n}\n"), UserError);
}

TEST(Half, ConversionsRoundToNearestEven) {
  for (uint32_t h = 0; h < 65536; ++h) {
    auto bits = static_cast<uint16_t>(h);
    float f = f16_to_float(bits), b = bf16_to_float(bits);
    ASSERT_TRUE(std::isnan(f) || float_to_f16(f) == bits) << h;
    ASSERT_TRUE(std::isnan(b) || float_to_bf16(b) == bits) << h;
  }
  EXPECT_EQ(float_to_f16(2049.0f), float_to_f16(2048.0f));
  EXPECT_EQ(float_to_f16(2051.0f), float_to_f16(2052.0f));
  EXPECT_EQ(float_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_f16(1e6f), 0x7c00);
  EXPECT_EQ(float_to_f16(1e-8f), 0);
}

// The known answers of the generator's authors for key and counter 0.
TEST(Interpret, RandomNumbers) {
  const Kernel k = parse(R"(kernel {
  p0 = i64[2] read
  p1 = f32[4] write
  outer i0.4
  cost 20
  stage {
    v0 = load i64 p0[0]
    v1 = load i64 p0[1]
    v2 = uniform f32 [i0.4] [0] [256] 4 v0 v1
    v3 = store p1[i0.4] v2
  }
}
)");
  verify(k);
  EXPECT_EQ(text(parse(text(k))), text(k));
  const int64_t state[2] = {0, 0};
  float out[4];
  void* pointers[] = {const_cast<int64_t*>(state), out};
  ASSERT_EQ(interpret(k, pointers), 0);
  const uint32_t bits[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(out[i], static_cast<float>(bits[i]) * 0x1p-32f + 0x1p-33f) << i;
}

}  // namespace
}  // namespace flashover::loops
