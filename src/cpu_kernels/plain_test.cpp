// The hand-written operators without torch: what fits is computed, what does not is refused before anything is touched.
#include "cpu_kernels/plain.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "cpu_kernels/panels.h"

namespace flashover::cpu {
namespace {

struct Numbers {
  std::vector<float> values;
  std::vector<int64_t> sizes, strides;
  explicit Numbers(std::vector<int64_t> of) : sizes(std::move(of)), strides(sizes.size(), 1) {
    for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d];
    values.resize(static_cast<size_t>(std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>())));
    std::iota(values.begin(), values.end(), 0.0F);
  }
  Plain plain() { return {values.data(), DType::kF32, sizes, strides}; }
};

TEST(Plain, AProductByName) {
  if (!vector_kernels()) GTEST_SKIP() << "no AVX2";
  Numbers x({3, 4}), weight({5, 4}), out({3, 5});
  const PlainOperator* pack = find_plain("flashover.pack_panels.default");
  const PlainOperator* multiply = find_plain("flashover.panel_linear.out");
  ASSERT_TRUE(pack && multiply && pack->packed_elements && !multiply->packed_elements);
  const std::vector<PlainArgument> weights{weight.plain()};
  Numbers packed({pack->packed_elements(weights)});
  const Plain whole = packed.plain(), result = out.plain();
  EXPECT_EQ(pack->call(weights, {&whole, 1}), "");
  const std::vector<PlainArgument> arguments{x.plain(), whole, {}, {}, int64_t{5}, std::string_view("relu")};
  EXPECT_EQ(multiply->call(arguments, {&result, 1}), "");
  for (size_t i = 0; i < 3; ++i)
    for (size_t k = 0; k < 5; ++k) {
      float sum = 0;
      for (size_t j = 0; j < 4; ++j) sum += x.values[4 * i + j] * weight.values[4 * k + j];
      EXPECT_EQ(out.values[5 * i + k], sum);
    }
  EXPECT_EQ(find_plain("aten.sort.default"), nullptr);
}

TEST(Plain, AProductOfTheAmxUnitByName) {
  if (const std::string_view missing = missing_for("flashover.packed_linear.out"); !missing.empty())
    GTEST_SKIP() << missing;
  Numbers x({3, 40}), weight({35, 40}), bias({35}), out({3, 35}), small({34});
  const PlainOperator* pack = find_plain("flashover.pack_linear.default");
  const PlainOperator* multiply = find_plain("flashover.packed_linear.out");
  ASSERT_TRUE(pack && multiply && pack->packed_elements && !multiply->packed_elements);
  const std::vector<PlainArgument> weights{weight.plain()};
  Numbers packed({pack->packed_elements(weights)});
  const Plain whole = packed.plain(), result = out.plain();
  EXPECT_EQ(pack->call(weights, {&whole, 1}), "");
  EXPECT_EQ(multiply->call({{x.plain(), whole, bias.plain(), int64_t{35}, std::string_view("none")}}, {&result, 1}),
            "");
  for (size_t i = 0; i < 3; ++i)
    for (size_t k = 0; k < 35; ++k) {
      double sum = static_cast<double>(k);
      for (size_t j = 0; j < 40; ++j) sum += double{x.values[40 * i + j]} * weight.values[40 * k + j];
      EXPECT_NEAR(out.values[35 * i + k], sum, 1e-6 * sum);
    }
  const Plain few = small.plain();
  for (const std::vector<PlainArgument>& wrong :
       std::initializer_list<std::vector<PlainArgument>>{{x.plain(), whole, few, int64_t{35}, std::string_view("none")},
                                                         {x.plain(), few, {}, int64_t{35}, std::string_view("none")},
                                                         {x.plain(), whole, {}, int64_t{35}, std::string_view("sine")},
                                                         {x.plain(), whole, {}, int64_t{-1}, std::string_view("none")},
                                                         {x.plain(), whole, {}, int64_t{35}}})
    EXPECT_NE(multiply->call(wrong, {&result, 1}), "");
  EXPECT_NE(pack->call(weights, {&few, 1}), "");
}

TEST(Plain, WhatDoesNotFitIsRefused) {
  if (!vector_kernels()) GTEST_SKIP() << "no AVX2";
  Numbers x({3, 4}), packed({panel_elements(5, 4)}), small({panel_elements(5, 3)}), out({3, 5}), wide({3, 6}),
      bias({4});
  const Plain given = bias.plain();
  EXPECT_NE(panel_linear(x.plain(), small.plain(), nullptr, nullptr, 5, "none", out.plain()), "");
  EXPECT_NE(panel_linear(x.plain(), packed.plain(), nullptr, nullptr, 5, "none", wide.plain()), "");
  EXPECT_NE(panel_linear(x.plain(), packed.plain(), &given, nullptr, 5, "none", out.plain()), "");
  EXPECT_NE(panel_linear(x.plain(), packed.plain(), nullptr, nullptr, 5, "sine", out.plain()), "");
  EXPECT_NE(panel_linear(x.plain(), packed.plain(), nullptr, nullptr, -5, "none", out.plain()), "");
  EXPECT_EQ(panel_linear(x.plain(), packed.plain(), nullptr, nullptr, 5, "none", out.plain()), "");
  const Plain result = out.plain();
  const std::vector<PlainArgument> few{x.plain(), packed.plain()}, other{1.0, packed.plain(), {}, {}, int64_t{5}, true};
  for (const auto& arguments : {few, other})
    EXPECT_NE(find_plain("flashover.panel_linear.out")->call(arguments, {&result, 1}), "");
}

TEST(Plain, AConvolutionsGeometry) {
  if (!vector_kernels()) GTEST_SKIP() << "no AVX2";
  Numbers x({1, 1, 5, 5}), packed({16 * 9}), out({1, 1, 3, 3});
  const std::vector<int64_t> three{3, 3}, one{1, 1}, none{0, 0}, odd{1}, wide{7, 7};
  EXPECT_EQ(depthwise_last(x.plain(), packed.plain(), nullptr, {three, one, none, one}, "none", out.plain()), "");
  for (const DepthwiseGeometry& g : {DepthwiseGeometry{three, none, none, one},
                                     {three, odd, none, one},
                                     {three, one, one, one},
                                     {three, one, none, wide},
                                     {wide, one, none, one}})
    EXPECT_NE(depthwise_last(x.plain(), packed.plain(), nullptr, g, "none", out.plain()), "");
}

TEST(Plain, TheLibrarysCallsNeedNoInstructions) {
  for (const char* op : {"flashover.attention_by_entry.default", "flashover.attention_backward_by_entry.default",
                         "flashover.convolution_input_gradient_by_image.default", "aten.mm.default"})
    EXPECT_EQ(missing_for(op), "") << op;
}

TEST(Plain, AttentionsOperands) {
  if (const std::string_view missing = missing_for("flashover.attention.default"); !missing.empty())
    GTEST_SKIP() << missing;
  Numbers q({1, 2, 3, 16}), k({1, 2, 5, 16}), v({1, 2, 5, 8}), out({1, 2, 3, 8}), narrow({1, 2, 3, 7}), mask({3, 4});
  Numbers three_heads({1, 3, 5, 16});
  const Plain bias = mask.plain();
  EXPECT_EQ(attention(q.plain(), k.plain(), v.plain(), {}, {}, out.plain(), nullptr), "");
  EXPECT_NE(attention(q.plain(), k.plain(), v.plain(), {}, {}, narrow.plain(), nullptr), "");
  EXPECT_NE(attention(q.plain(), k.plain(), v.plain(), {&bias, 1}, {}, out.plain(), nullptr), "");
  EXPECT_NE(attention(q.plain(), three_heads.plain(), v.plain(), {}, {}, out.plain(), nullptr), "");
  EXPECT_NE(attention(q.plain(), k.plain(), v.plain(), {}, {}, out.plain(), &bias), "");
}

}  // namespace
}  // namespace flashover::cpu
