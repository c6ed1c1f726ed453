// Operators of torch's libraries by own kernels: against sums in f64, for geometries of all kinds; what does not fit is
// refused.
#include "cpu_kernels/library_operators.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "cpu_kernels/vectors.h"

namespace flashover::cpu {
namespace {

using List = std::vector<int64_t>;

struct Random {
  List sizes, strides;
  std::vector<float> values;
  explicit Random(List of, unsigned seed = 0) : sizes(std::move(of)), strides(sizes.size(), 1) {
    for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d];
    const int64_t n = std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
    std::mt19937 engine(seed + static_cast<unsigned>(n));
    std::normal_distribution<float> draw;
    for (int64_t i = 0; i < n; ++i) values.push_back(draw(engine));
  }
  void lay_channels_last() {
    int64_t stride = sizes[1];
    strides[1] = 1;
    for (size_t d = sizes.size(); d-- > 2; stride *= sizes[d]) strides[d] = stride;
    strides[0] = stride;
  }
  Plain plain() { return {values.data(), DType::kF32, sizes, strides}; }
  double at(std::initializer_list<int64_t> index) const {
    int64_t offset = 0;
    size_t d = 0;
    for (int64_t i : index) offset += i * strides[d++];
    return values[static_cast<size_t>(offset)];
  }
};

struct Geometry {
  int64_t batch, in, out, groups, rows, columns, kernel_rows, kernel_columns, stride, padding, dilation;
  bool last;  // image and result lie channels last
};

double convolved(const Geometry& g, const Random& x, const Random& w, int64_t n, int64_t o, int64_t i, int64_t j) {
  double sum = 0;
  const int64_t width = g.in / g.groups, first = o / (g.out / g.groups) * width;
  for (int64_t c = 0; c < width; ++c)
    for (int64_t a = 0; a < g.kernel_rows; ++a)
      for (int64_t b = 0; b < g.kernel_columns; ++b) {
        const int64_t row = i * g.stride - g.padding + a * g.dilation,
                      column = j * g.stride - g.padding + b * g.dilation;
        if (row < 0 || row >= g.rows || column < 0 || column >= g.columns) continue;
        sum += x.at({n, first + c, row, column}) * w.at({o, c, a, b});
      }
  return sum;
}

TEST(LibraryOperators, Convolutions) {
  if (!vector_kernels()) GTEST_SKIP() << "no AVX2";
  const Geometry all[] = {{2, 3, 17, 1, 9, 11, 3, 3, 1, 1, 1, true},   {1, 3, 40, 1, 15, 14, 7, 7, 2, 3, 1, false},
                          {2, 8, 12, 4, 6, 7, 3, 1, 1, 1, 2, true},    {1, 16, 33, 1, 5, 6, 1, 1, 1, 0, 1, true},
                          {2, 16, 8, 2, 5, 6, 1, 1, 2, 0, 1, true},    {1, 6, 12, 6, 8, 8, 5, 5, 2, 2, 1, false},
                          {1, 130, 5, 1, 30, 30, 3, 3, 1, 0, 3, true}, {3, 4, 4, 1, 2, 2, 4, 4, 1, 3, 1, true}};
  const PlainOperator* pack = find_plain("mkldnn._reorder_convolution_weight.default");
  const PlainOperator* convolve = find_plain("mkldnn._convolution_pointwise.default");
  const PlainOperator* whole = find_plain("aten.convolution.default");
  ASSERT_TRUE(pack && convolve && whole);
  for (const Geometry& g : all) {
    const auto out_size = [&](int64_t size, int64_t kernel) {
      return (size + 2 * g.padding - g.dilation * (kernel - 1) - 1) / g.stride + 1;
    };
    Random x({g.batch, g.in, g.rows, g.columns}), w({g.out, g.in / g.groups, g.kernel_rows, g.kernel_columns}, 1),
        bias({g.out}, 2), out({g.batch, g.out, out_size(g.rows, g.kernel_rows), out_size(g.columns, g.kernel_columns)});
    if (g.last) x.lay_channels_last(), out.lay_channels_last();
    Random second = out;
    const List stride{g.stride, g.stride}, padding{g.padding}, dilation{g.dilation, g.dilation};
    const std::vector<PlainArgument> weight{w.plain(), padding, stride, dilation, g.groups, x.sizes};
    ASSERT_GT(pack->packed_elements(weight), 0);
    Random packed({pack->packed_elements(weight)});
    const Plain laid = packed.plain(), result = out.plain(), other = second.plain();
    ASSERT_EQ(pack->call(weight, {&laid, 1}), "");
    const std::vector<PlainArgument> call{
        x.plain(),         laid, bias.plain(), padding, stride, dilation, g.groups, std::string_view("swish"), {},
        std::string_view()};
    ASSERT_EQ(convolve->call(call, {&result, 1}), "");
    const std::vector<PlainArgument> plainly{x.plain(), w.plain(), {},      stride,  padding,
                                             dilation,  false,     List{0}, g.groups};
    ASSERT_EQ(whole->call(plainly, {&other, 1}), "");
    for (int64_t n = 0; n < g.batch; ++n)
      for (int64_t o = 0; o < g.out; ++o)
        for (int64_t i = 0; i < out.sizes[2]; ++i)
          for (int64_t j = 0; j < out.sizes[3]; ++j) {
            const double sum = convolved(g, x, w, n, o, i, j), y = sum + bias.at({o});
            ASSERT_NEAR(second.at({n, o, i, j}), sum, 1e-4) << g.in << " to " << g.out;
            ASSERT_NEAR(out.at({n, o, i, j}), y / (1 + std::exp(-y)), 1e-4) << g.in << " to " << g.out;
          }
  }
}

TEST(LibraryOperators, Products) {
  if (!vector_kernels()) GTEST_SKIP() << "no AVX2";
  Random x({2, 5, 7}), b({2, 7, 9}, 1), bias({9}, 2), out({2, 5, 9});
  b.strides[1] = 1, b.strides[2] = 7;  // lying the other way round
  const Plain result = out.plain();
  const auto check = [&](bool added) {
    for (int64_t n = 0; n < 2; ++n)
      for (int64_t i = 0; i < 5; ++i)
        for (int64_t j = 0; j < 9; ++j) {
          double sum = added ? bias.at({j}) : 0;
          for (int64_t k = 0; k < 7; ++k) sum += x.at({n, i, k}) * b.at({n, k, j});
          ASSERT_NEAR(out.at({n, i, j}), sum, 1e-5);
        }
  };
  const std::vector<PlainArgument> two{x.plain(), b.plain()};
  EXPECT_EQ(find_plain("aten.bmm.default")->call(two, {&result, 1}), "");
  check(false);
  const std::vector<PlainArgument> added{bias.plain(), x.plain(), b.plain(), int64_t{1}, 1.0};
  EXPECT_EQ(find_plain("aten.baddbmm.default")->call(added, {&result, 1}), "");
  check(true);
  const std::vector<PlainArgument> scaled{bias.plain(), x.plain(), b.plain(), int64_t{1}, 2.0};
  EXPECT_NE(find_plain("aten.baddbmm.default")->call(scaled, {&result, 1}), "");
  EXPECT_NE(find_plain("aten.bmm.default")->call(scaled, {&result, 1}), "");
}

TEST(LibraryOperators, PackedLinears) {
  if (!vector_kernels()) GTEST_SKIP() << "no AVX2";
  Random x({5, 7}), w({9, 7}, 1), bias({9}, 2), out({5, 9}), second({5, 9});
  const std::vector<PlainArgument> weight{w.plain(), int64_t{5}};
  for (const char* name : {"mkl._mkl_reorder_linear_weight.default", "mkldnn._reorder_linear_weight.default"}) {
    const PlainOperator* pack = find_plain(name);
    Random packed({pack->packed_elements(weight)});
    const Plain laid = packed.plain(), result = out.plain(), other = second.plain();
    ASSERT_EQ(pack->call(weight, {&laid, 1}), "");
    const std::vector<PlainArgument> linear{x.plain(),         laid, bias.plain(), std::string_view("tanh"), {},
                                            std::string_view()};
    const std::vector<PlainArgument> mkl{x.plain(), laid, w.plain(), {}, int64_t{5}};
    ASSERT_EQ(find_plain("mkldnn._linear_pointwise.default")->call(linear, {&result, 1}), "");
    ASSERT_EQ(find_plain("mkl._mkl_linear.default")->call(mkl, {&other, 1}), "");
    for (int64_t i = 0; i < 5; ++i)
      for (int64_t j = 0; j < 9; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < 7; ++k) sum += x.at({i, k}) * w.at({j, k});
        ASSERT_NEAR(second.at({i, j}), sum, 1e-5);
        ASSERT_NEAR(out.at({i, j}), std::tanh(sum + bias.at({j})), 1e-5);
      }
  }
}

TEST(LibraryOperators, WhatDoesNotFitIsRefused) {
  if (!vector_kernels()) GTEST_SKIP() << "no AVX2";
  const PlainOperator* pack = find_plain("mkldnn._reorder_convolution_weight.default");
  const PlainOperator* convolve = find_plain("mkldnn._convolution_pointwise.default");
  Random x({1, 4, 5, 5}), w({6, 2, 3, 3}), out({1, 6, 3, 3}), small({1, 6, 3, 2});
  const List one{1, 1}, none{0, 0}, three{1, 1, 1};
  const auto weight = [&](int64_t groups) {
    return std::vector<PlainArgument>{w.plain(), none, one, one, groups, x.sizes};
  };
  for (const int64_t groups : {int64_t{0}, int64_t{-1}, int64_t{4}, int64_t{1} << 40})
    EXPECT_LT(pack->packed_elements(weight(groups)), 0) << groups;
  Random packed({pack->packed_elements(weight(2))});
  const Plain laid = packed.plain(), result = out.plain(), wrong = small.plain();
  const auto call = [&](const Plain& from, const Plain& weights, const List& padding, const List& stride,
                        int64_t groups, std::string_view attr, const Plain& to) {
    const std::vector<PlainArgument> a{from, weights, {}, padding, stride, one, groups, attr, {}, std::string_view()};
    return convolve->call(a, {&to, 1});
  };
  EXPECT_NE(call(x.plain(), laid, none, one, 2, "none", result), "");  // nothing was packed there
  ASSERT_EQ(pack->call(weight(2), {&laid, 1}), "");
  EXPECT_EQ(call(x.plain(), laid, none, one, 2, "none", result), "");
  EXPECT_NE(call(x.plain(), laid, none, one, 1, "none", result), "");
  EXPECT_NE(call(x.plain(), laid, none, one, 2, "sine", result), "");
  EXPECT_NE(call(x.plain(), laid, none, one, 2, "none", wrong), "");
  EXPECT_NE(call(x.plain(), laid, three, one, 2, "none", result), "");
  EXPECT_NE(call(x.plain(), laid, none, none, 2, "none", result), "");
  EXPECT_NE(call(w.plain(), laid, none, one, 2, "none", result), "");
  const List fewer{laid.sizes[0] - 1}, dense{1};
  EXPECT_NE(call(x.plain(), Plain{laid.data, DType::kF32, fewer, dense}, none, one, 2, "none", result), "");
  EXPECT_NE(convolve->call({}, {&result, 1}), "");
  EXPECT_NE(find_plain("aten._scaled_dot_product_flash_attention_for_cpu.default")->call({}, {&result, 1}), "");
}

}  // namespace
}  // namespace flashover::cpu
