// Products by formula, the rest by elements, views and copies for nothing.
#include "graph/analysis/flops.h"

#include <gtest/gtest.h>

namespace flashover::graph {
namespace {

double count(const std::string& nodes) {
  return flops(parse("graph {\n  %0 : f32[4,8] s0 = input user \"x\"\n  %1 : f32[8,16] s1 = input user \"w\"\n"
                     "  %2 : f32[2,3,8,8] s2 = input user \"image\"\n  %3 : f32[5,3,3,3] s3 = input user \"k\"\n" +
                     nodes + "  return %9\n}"))
      .value_or(-1);
}

TEST(Flops, CountProductsAndElements) {
  EXPECT_EQ(count("%9 : f32[4,16] s9 = aten.mm.default(%0, %1)\n"), 2 * 4 * 8 * 16);
  EXPECT_EQ(
      count("%9 : f32[2,5,8,8] s9 = aten.convolution.default(%2, %3, None, [1, 1], [1, 1], [1, 1], false, [0, 0], "
            "1)\n"),
      2.0 * (2 * 5 * 8 * 8) * (3 * 3 * 3));
  EXPECT_EQ(count("%9 : f32[4,8] s9 = aten.exp.default(%0)\n"), 32);
  EXPECT_EQ(count("%9 : f32[4] s9 = aten.sum.dim_IntList(%0, [1], false, None)\n"), 32);
  EXPECT_EQ(count("%9 : f32[8,4]{1,8} s0 = aten.t.default(%0)\n"), 0);
  EXPECT_EQ(count("%9 : f32[4,8] s9 = aten.clone.default(%0, None)\n"), 0);
}

}  // namespace
}  // namespace flashover::graph
