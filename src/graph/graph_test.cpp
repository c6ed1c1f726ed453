// Text that round-trips, hashes, verification, and what the builder leaves out.
#include <gtest/gtest.h>

#include "base/check.h"
#include "graph/builder.h"

namespace flashover::graph {
namespace {

const char* const kSample = R"(graph {
  %0 : f32[2,3] = input user grad "L['x']"
  %1 : f32[3] = input param "L['self'].bias"
  %2 : f32[2,3] = aten.add.Tensor(%0, %1, 1)  # model.py:12
  %3 : f32[3,2]{1,3} = prim.permute(%2, [1, 0])
  %4 : f32[2,3], _ = aten.foo.default(%[%2, None, %3], None, [1, 2], f[0.5, inf], b[true], 1.5, "a\"b\n", bf16, cuda:1, channels_last, strided, complex(1.0, -2.0), -3, nan, f[], [], %[])
  aten.bar.default()
  mutate 0 = %4
  return %4, _ of input 0 : f32[3]{2}+1, _ of output 0 : f32[2,3]
}
)";

TEST(Graph, PrintParsesBack) {
  const Graph g = parse(kSample);
  EXPECT_EQ(print(g), kSample);
  verify(g, Form::kFunctional);
  EXPECT_EQ(hash(g), hash(parse(print(g))));
}

TEST(Graph, HashIgnoresNumbersNamesAndLocationsButNotConstants) {
  const char* a = "graph {\n %0 : f32[2] = input user \"x\"\n %1 : f32[2] = aten.f.default(%0, 1) # a\n return %1\n}";
  const char* b = "graph {\n %5 : f32[2] = input user \"y\"\n %3 : f32[2] = aten.f.default(%5, 1) # b\n return %3\n}";
  const char* c = "graph {\n %0 : f32[2] = input user \"x\"\n %1 : f32[2] = aten.f.default(%0, 2) # a\n return %1\n}";
  const char* d = "graph {\n %0 : f32[2] = input param \"x\"\n %1 : f32[2] = aten.f.default(%0, 1) # a\n return %1\n}";
  EXPECT_EQ(hash(parse(a)), hash(parse(b)));
  EXPECT_FALSE(hash(parse(a)) == hash(parse(c)));
  EXPECT_FALSE(hash(parse(a)) == hash(parse(d)));
}

TEST(Graph, WhatWritesAnInputOrDrawsNumbersIsNotRepeatable) {
  const auto of = [](const std::string& x, const std::string& y, const char* node) {
    return parse("graph {\n %0 : f32[2] " + x + " = input user \"x\"\n %1 : f32[2] " + y +
                 " = aten.relu.default(%0)\n " + node + "\n return %1\n}");
  };
  const char* write = "%2 : f32[2] = aten.add_.Tensor(%1, %0, 1)";
  EXPECT_FALSE(writes_an_input(of("s0", "s1", write)));
  EXPECT_TRUE(writes_an_input(of("s0", "s0", write)));  // in the input's memory
  EXPECT_TRUE(writes_an_input(of("s0", "", write)));    // nobody knows where
  EXPECT_TRUE(writes_an_input(of("", "s1", write)));
  EXPECT_FALSE(writes_an_input(of("", "", "%2 : f32[2] = aten.relu.default(%1)")));
  EXPECT_TRUE(repeatable(of("s0", "s1", write)));
  EXPECT_FALSE(repeatable(of("s0", "s0", write)));
  EXPECT_FALSE(repeatable(of("s0", "s1", "%2 : f32[2] = aten.rand_like.default(%1)")));
}

TEST(Graph, ParseErrorsNameThePlace) {
  auto error = [](const char* text) {
    try {
      parse(text);
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error("graph {\n  %1 : f32[2] = aten.f.default(%0)\n}"), "2:34: %0 is not defined yet");
  EXPECT_EQ(error("graph {\n  %1 : f99[2] = input user\n}"), "2:11: unknown dtype f99");
  EXPECT_EQ(error("graph {\n  return %1"), "2:12: %1 is not defined yet");
}

TEST(Graph, VerifySaysTheBrokenSentence) {
  auto error = [](const char* text, Form form) {
    try {
      verify(parse(text), form);
    } catch (const InternalError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(error("graph {\n %0 : f32[2] = input user\n %1 : f32[3] = prim.neg(%0)\n return %1\n}", Form::kCore)
                .find("a prim's results have the types that its rule says"),
            std::string::npos);
  EXPECT_NE(error("graph {\n %0 : f32[2] s0 = input user\n return %0\n}", Form::kFunctional).find("traced form"),
            std::string::npos);
}

TEST(Builder, BroadcastsAndFoldsNothingToDo) {
  Graph g(kNewProgram);
  const ValueId x = g.add_input({.dtype = DType::kF32, .sizes = {2, 3}, .strides = {3, 1}}, InputKind::kUser, "x");
  const ValueId y = g.add_input({.dtype = DType::kF32, .sizes = {3}, .strides = {1}}, InputKind::kUser, "y");
  Builder b(g);
  EXPECT_EQ(b.convert(x, DType::kF32), x);
  EXPECT_EQ(b.permute(x, {0, 1}), x);
  const ValueId s = b.add(x, y);
  const ValueId m = b.sum(s, {-1}, true);
  const ValueId t = b.transpose(b.mul(s, m), 0, 1);
  g.outputs.push_back({.value = t, .type = g.type(t)});
  EXPECT_EQ(print(g), R"(graph {
  %0 : f32[2,3] = input user "x"
  %1 : f32[3] = input user "y"
  %2 : f32[2,3]{0,1} = prim.broadcast(%1, [2, 3], [1])
  %3 : f32[2,3] = prim.add(%0, %2)
  %4 : f32[2] = prim.sum(%3, [1])
  %5 : f32[2,1] = prim.reshape(%4, [2, 1])
  %6 : f32[2,3]{1,0} = prim.broadcast(%5, [2, 3], [0, 1])
  %7 : f32[2,3] = prim.mul(%3, %6)
  %8 : f32[3,2]{1,3} = prim.permute(%7, [1, 0])
  return %8
}
)");
  verify(g, Form::kCore);
}

}  // namespace
}  // namespace flashover::graph
