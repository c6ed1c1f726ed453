// A backward whose tangents do not all come, and what both halves of a joint graph keep of it.
#include "graph/partition/prune.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "graph/partition/partition.h"

namespace flashover::graph {
namespace {

constexpr std::string_view kBackward = R"(graph exact {
  %0 : f32[4] = input user "tangent"
  %1 : f32[4] = input user "tangent"
  %2 : f32[4] = input user "saved"
  test.log.default(%0)  # a.py:1
  test.log.default(%1)  # a.py:2
  %3 : f32[4] = test.count.default(%0)  # a.py:3
  %4 : f32[4] = prim.mul(%0, %2)  # a.py:4
  %5 : f32[4] = prim.mul(%1, %2)  # a.py:5
  %6 : f32[4] = prim.add(%4, %5)  # a.py:6
  return %6
})";

TEST(Prune, KeepsTheFactsOfTheGraph) {
  const Graph g = parse(kBackward);
  const Pruned p = without_tangents(g, {true, true, false}, {false, true, false});
  EXPECT_TRUE(p.graph.facts.exact);
  EXPECT_EQ(p.graph.facts.locations, g.facts.locations);
  verify(p.graph, Form::kCore);
}

TEST(Prune, EffectsOfWhatComesStay) {
  const Pruned p = without_tangents(parse(kBackward), {true, true, false}, {false, true, false});
  std::vector<std::string> names;
  for (const Node& n : p.graph.nodes) names.push_back(n.op->name);
  EXPECT_EQ(names, (std::vector<std::string>{"test.log.default", "test.count.default", "prim.mul"}));
}

// Shared by both: read by what is left, too, and computed from before it is read.
TEST(Prune, TellsWhatTheLeftOutReads) {
  const Graph g = parse(R"(graph {
    %0 : f32[4] = input user "tangent"
    %1 : f32[4] = input user "tangent"
    %2 : f32[4] = input user "shared"
    %3 : f32[4] = input user "of the first"
    %4 : f32[4] = prim.sin(%2)  # a.py:1
    %5 : f32[4] = prim.mul(%0, %2)  # a.py:2
    %6 : f32[4] = prim.mul(%5, %3)  # a.py:3
    %7 : f32[4] = prim.mul(%1, %4)  # a.py:4
    return %6, %7
  })");
  const std::vector<bool> tangent = {true, true, false, false};
  EXPECT_EQ(without_tangents(g, tangent, {false, true, false, false}).left_out, std::vector<int32_t>{2});
  EXPECT_EQ(without_tangents(g, tangent, {true, false, false, false}).left_out, (std::vector<int32_t>{2, 3}));
}

Joint joint_of(const Graph& g, int32_t tangent) {
  Joint j;
  j.present = true;
  j.results.resize(1);
  j.results[0].requires_grad = true;
  j.results[0].tangent = 0;
  j.tangents = {tangent};
  j.gradients = {0};
  j.depends = {{0}};
  j.saved_inputs.assign(g.inputs.size(), true);
  return j;
}

TEST(Partition, BothHalvesKeepTheFactsAndTheEffects) {
  const Graph g = parse(R"(graph exact {
    %0 : f32[4] = input user grad "x"
    test.log.default(%0)  # a.py:1
    %1 : f32[4] = prim.sin(%0)  # a.py:1
    %2 : f32[4] = test.count.default(%1)  # a.py:2
    %3 : f32[4] = input tangent
    test.log.default(%3)  # a.py:3
    %4 : f32[4] = prim.cos(%0)
    %5 : f32[4] = prim.mul(%3, %4)
    return %1, %5
  })");
  const Partition p = partition(g, joint_of(g, 1));
  const auto effects = [](const Graph& half) {
    int n = 0;
    for (const Node& node : half.nodes) n += node.op->effectful;
    return n;
  };
  for (const Graph* half : {&p.forward, &p.backward}) {
    EXPECT_TRUE(half->facts.exact);
    EXPECT_EQ(half->facts.locations, g.facts.locations);
  }
  EXPECT_EQ(effects(p.forward), 2);
  EXPECT_EQ(effects(p.backward), 1);
}

// Of a checkpoint only what is handed on is kept, and what the program's policy says.
TEST(Partition, WhatAPolicySavesIsNotMadeAgain) {
  const auto products = [](const std::string& mark) {
    const Graph g = parse(R"(graph {
      %0 : f32[32,32] = input user grad "x"
      %1 : f32[32,32] = aten.mm.default(%0, %0)  # a.py:1 [checkpoint 1)" +
                          mark + R"(
      %2 : f32[32,32] = prim.tanh(%1)  # a.py:2 [checkpoint 1]
      %3 : f32[32,32] = aten.mm.default(%2, %2)  # a.py:3 [checkpoint 1]
      %4 : f32[32,32] = input tangent
      %5 : f32[32,32] = aten.mm.default(%4, %2)
      return %3, %5
    })");
    const Partition p = partition(g, joint_of(g, 1));
    int n = 0;
    for (const Node& node : p.backward.nodes) n += node.op->name == "aten.mm.default";
    return std::pair(n, p.saved_bytes);
  };
  EXPECT_EQ(products("]"), std::pair(2, int64_t{0}));
  EXPECT_EQ(products(" save]"), std::pair(1, int64_t{32 * 32 * 4}));
  EXPECT_EQ(products(" prefer save]"), std::pair(1, int64_t{32 * 32 * 4}));
}

// A gradient's size is that of no tensor which the backward reads.
TEST(Prune, KeepsInputsThatTellSizes) {
  const Graph g = parse(R"(graph {
    where 0 < s2
    %0 : f32[4] = input user "tangent"
    %1 : f32[4] = input user "tangent"
    %2 : u8[0,s2] = input user "sizes"
    %3 : f32[s2,4] = aten.select_backward.default(%0, [s2, 4], 0, 0)  # a.py:1
    %4 : f32[s2,4] = aten.select_backward.default(%1, [s2, 4], 0, 0)  # a.py:2
    return %3, %4
  })");
  const Pruned p = without_tangents(g, {true, true, false}, {false, true, false});
  EXPECT_EQ(p.inputs, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(p.left_out, std::vector<int32_t>{2});
  verify(p.graph, Form::kFunctional);
}

TEST(Prune, DeclinesWhereOnlyAnAbsentTangentTellsASize) {
  const Graph g = parse(R"(graph {
    where 0 < s2
    %0 : f32[4] = input user "tangent"
    %1 : f32[s2] = input user "tangent"
    %2 : f32[s2,4] = aten.select_backward.default(%0, [s2, 4], 0, 0)  # a.py:1
    return %2, %1
  })");
  EXPECT_THROW(static_cast<void>(without_tangents(g, {true, true}, {false, true})), Declined);
}

}  // namespace
}  // namespace flashover::graph
