// Cuts against trying everything, and which values are saved for models' typical backwards.
#include "graph/partition/partition.h"

#include <gtest/gtest.h>

#include <random>

#include "base/check.h"
#include "graph/partition/min_cut.h"

namespace flashover::graph {
namespace {

// All cuts of small random networks.
TEST(MinCut, AgreesWithTryingEverything) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int nodes = 3 + static_cast<int>(random() % 5), edges = static_cast<int>(random() % 18);
    struct Edge {
      int from, to, capacity;
    };
    std::vector<Edge> list;
    MinCut cut(static_cast<size_t>(nodes));
    for (int e = 0; e < edges; ++e) {
      const Edge edge{static_cast<int>(random() % static_cast<unsigned>(nodes)),
                      static_cast<int>(random() % static_cast<unsigned>(nodes)), static_cast<int>(random() % 10)};
      list.push_back(edge);
      cut.add_edge(edge.from, edge.to, edge.capacity);
    }
    const auto cost = [&](auto&& on_source_side) {
      int64_t sum = 0;
      for (const Edge& e : list)
        if (on_source_side(e.from) && !on_source_side(e.to)) sum += e.capacity;
      return sum;
    };
    int64_t best = MinCut::kInfinite;
    for (int set = 0; set < 1 << nodes; ++set)
      if ((set & 1) && !(set & 2)) best = std::min(best, cost([&](int n) { return (set >> n & 1) != 0; }));
    const std::vector<bool> side = cut.source_side(0, 1);
    EXPECT_EQ(cut.total(), best);
    EXPECT_TRUE(side[0]);
    EXPECT_FALSE(side[1]);
    EXPECT_EQ(cost([&](int n) { return side[static_cast<size_t>(n)]; }), best);
  }
}

Joint facts_of(const Graph& g, size_t results) {
  Joint j;
  j.present = true;
  j.results.resize(results);
  for (size_t i = 0; i < g.inputs.size(); ++i)
    if (g.inputs[i].kind == InputKind::kTangent) {
      j.results[j.tangents.size()].requires_grad = true;
      j.results[j.tangents.size()].tangent = static_cast<int32_t>(j.tangents.size());
      j.tangents.push_back(static_cast<int32_t>(i));
    }
  for (size_t i = results; i < g.outputs.size(); ++i) {
    j.gradients.push_back(static_cast<int32_t>(i - results));
    j.depends.push_back({0});
  }
  j.saved_inputs.assign(g.inputs.size(), true);
  return j;
}

void expect_legal(const Partition& p) {
  verify(p.forward, Form::kCore);
  verify(p.backward, Form::kCore);
  EXPECT_EQ(p.backward.inputs.size(), p.backward_inputs.size());
  Partition copy;
  decode(encode(p), copy);
  EXPECT_EQ(encode(copy), encode(p));
}
std::vector<std::string> operators(const Graph& g) {
  std::vector<std::string> out;
  for (const Node& n : g.nodes) out.push_back(n.op->name);
  return out;
}
using Names = std::vector<std::string>;

auto saved_by(const Partition& p) {  // values that the forward keeps for the backward
  using In = Partition::BackwardInput;
  return std::count_if(p.backward_inputs.begin(), p.backward_inputs.end(),
                       [](const In& i) { return i.kind == In::Kind::kSaved; });
}

TEST(Partition, CheapArithmeticIsDoneAgain) {
  const Graph g = parse(R"(graph {
    %0 : f32[1000] = input user grad "x"
    %1 : f32[1000] = prim.neg(%0)
    %2 : f32[1000] = prim.mul(%1, %1)
    %3 : f32[1000] = input tangent
    %4 : f32[1000] = prim.mul(%3, %1)
    return %2, %4
  })");
  const Partition p = partition(g, facts_of(g, 1));
  expect_legal(p);
  EXPECT_EQ(operators(p.forward), (Names{"prim.neg", "prim.mul"}));
  EXPECT_EQ(operators(p.backward), (Names{"prim.neg", "prim.mul"}));
  EXPECT_EQ(p.saved_bytes, 0);
}

// A kernel on the GPU would have to write it to the CPU's memory.
TEST(Partition, NumbersBesideAGpuAreComputedAgain) {
  const Graph g = parse(R"(graph {
    %0 : f32[1000]@cuda:0 = input user grad "x"
    %1 : f64[]w = input user "number 1"
    %2 : f32[] = prim.convert(%1, f32)
    %3 : f32[1000]{0} = prim.broadcast(%2, [1000], [])
    %4 : f32[1000]@cuda:0 = prim.mul(%0, %3)
    %5 : f32[1000]@cuda:0 = input tangent
    %6 : f32[1000]@cuda:0 = prim.mul(%5, %3)
    return %4, %6
  })");
  const Partition p = partition(g, facts_of(g, 1));
  expect_legal(p);
  EXPECT_EQ(operators(p.backward), (Names{"prim.convert", "prim.broadcast", "prim.mul"}));
  EXPECT_EQ(saved_by(p), 0);
}

// Rows of 8 of which 7 count: the library reads them where they lie.
TEST(Partition, WindowsThatLibrariesReadAreSavedAsTheirMemory) {
  const Graph g = parse(R"(graph {
    %0 : f32[6,7] = input user grad "x"
    %1 : f32[6,8] = prim.pad(%0, [0, 0], [0, 1], 0.0)
    %2 : f32[6,7]{8,1} = prim.slice(%1, [0, 0], [6, 7], [1, 1])
    %3 : f32[7,5] = input user "w"
    %4 : f32[6,5] = aten.mm.default(%2, %3)
    %5 : f32[6,5] = input tangent
    %6 : f32[5,6]{1,5} = prim.permute(%5, [1, 0])
    %7 : f32[5,7] = aten.mm.default(%6, %2)
    return %4, %7
  })");
  const Partition p = partition(g, facts_of(g, 1));
  expect_legal(p);
  EXPECT_EQ(operators(p.backward), (Names{"prim.permute", "prim.pad", "prim.slice", "aten.mm.default"}));
  EXPECT_EQ(p.saved_bytes, 0) << "the input is there anyway";
}

TEST(Partition, AnInputThatEagerDoesNotSaveIsCopied) {
  const Graph g = parse(R"(graph {
    %0 : f32[1000] = input user grad "x"
    %1 : f32[1000] = prim.neg(%0)
    %3 : f32[1000] = input tangent
    %4 : f32[1000] = prim.mul(%3, %0)
    return %1, %4
  })");
  Joint facts = facts_of(g, 1);
  EXPECT_EQ(partition(g, facts).saved_bytes, 0);
  facts.saved_inputs[0] = false;
  const Partition p = partition(g, facts);
  expect_legal(p);
  EXPECT_EQ(p.saved_bytes, 4000);
}

TEST(Partition, ProductsAndRandomNumbersAreKept) {
  const Graph g = parse(R"(graph {
    %0 : f32[32,32] = input user grad "x"
    %1 : f32[32,32] = aten.mm.default(%0, %0)
    %2 : f32[32,32] = aten.bernoulli.p(%1, 0.5, None)
    %3 : f32[32,32] = prim.sin(%1)
    %4 : f32[32,32] = prim.mul(%3, %2)
    %5 : f32[32,32] = input tangent
    %6 : f32[32,32] = prim.mul(%5, %2)
    %7 : f32[32,32] = prim.cos(%1)
    %8 : f32[32,32] = prim.mul(%6, %7)
    %9 : f32[32,32] = aten.mm.default(%8, %0)
    return %4, %9
  })");
  const Partition p = partition(g, facts_of(g, 1));
  expect_legal(p);
  EXPECT_EQ(operators(p.backward), (Names{"prim.mul", "prim.cos", "prim.mul", "aten.mm.default"}));
  EXPECT_EQ(p.saved_bytes, 2 * 4096);
}

TEST(Partition, ABudgetTradesMemoryForWork) {
  const Graph g = parse(R"(graph {
    %0 : f32[1000] = input user grad "x"
    %1 : f32[1000] = prim.exp(%0)
    %2 : f32[1000] = prim.sin(%1)
    %3 : f32[1000] = prim.exp(%2)
    %4 : f32[1000] = prim.sin(%3)
    %5 : f32[1000] = prim.exp(%4)
    %6 : f32[1000] = input tangent
    %7 : f32[1000] = prim.mul(%6, %5)
    return %5, %7
  })");
  Joint facts = facts_of(g, 1);
  EXPECT_EQ(partition(g, facts).saved_bytes, 4000);
  EXPECT_EQ(partition(g, facts, {.memory_budget = 0}).saved_bytes, 0);
}

TEST(Partition, CheckpointsAreComputedAgainFromWhereTheyStart) {
  const Graph g = parse(R"(graph {
    %0 : f32[32,32] = input user grad "x"
    %1 : f32[32,32] = aten.mm.default(%0, %0)  # a.py:1 [checkpoint 1]
    %2 : f32[32,32] = aten.bernoulli.p(%1, 0.5, None)  # a.py:2 [checkpoint 1]
    %3 : f32[32,32] = prim.mul(%1, %2)  # a.py:3 [checkpoint 1]
    %4 : f32[32,32] = aten.mm.default(%3, %3)  # a.py:1 [checkpoint 2]
    %5 : f32[32,32] = prim.exp(%4)  # a.py:2 [checkpoint 2]
    %6 : f32[32,32] = input tangent
    %7 : f32[32,32] = prim.mul(%6, %5)
    %8 : f32[32,32] = aten.mm.default(%7, %3)
    %9 : f32[32,32] = prim.mul(%8, %2)
    %10 : f32[32,32] = aten.mm.default(%9, %1)
    return %5, %10
  })");
  const Partition p = partition(g, facts_of(g, 1));
  expect_legal(p);
  // Kept: what the second checkpoint starts from, and the random numbers. %5 is the result, which eager saves.
  EXPECT_EQ(p.saved_bytes, 3 * 4096);
  EXPECT_EQ(operators(p.backward),
            (Names{"prim.mul", "aten.mm.default", "prim.mul", "aten.mm.default", "aten.mm.default"}));
}

TEST(Partition, ResidualSumsAreKeptAndNotTheirChain) {
  const Graph g = parse(R"(graph {
    %0 : f32[32,32] = input user grad "x"
    %1 : f32[32,32] = aten.mm.default(%0, %0)
    %2 : f32[32,32] = aten.mm.default(%1, %0)
    %3 : f32[32,32] = prim.add(%2, %1)
    %4 : f32[32,32] = prim.neg(%3)
    %5 : f32[32,32] = input tangent
    %7 : f32[32,32] = prim.mul(%5, %3)
    %8 : f32[32,32] = aten.mm.default(%7, %1)
    return %4, %8
  })");
  const Partition p = partition(g, facts_of(g, 1));
  expect_legal(p);
  EXPECT_EQ(operators(p.backward), (Names{"prim.mul", "aten.mm.default"}));
}

// In half precision an earlier sum of f32 is as dear as two layers' results; it lies in memory already.
TEST(Partition, ResidualSumsOfMixedPrecisionAreKept) {
  const Graph g = parse(R"(graph {
    %0 : bf16[32,32] = input user grad "x"
    %1 : f32[32,32] = prim.convert(%0, f32)
    %2 : bf16[32,32] = aten.mm.default(%0, %0)
    %3 : f32[32,32] = prim.convert(%2, f32)
    %4 : f32[32,32] = prim.add(%1, %3)
    %5 : bf16[32,32] = prim.convert(%4, bf16)
    %6 : bf16[32,32] = aten.mm.default(%5, %0)
    %7 : f32[32,32] = prim.convert(%6, f32)
    %8 : f32[32,32] = prim.add(%4, %7)
    %9 : bf16[32,32] = prim.convert(%8, bf16)
    %10 : bf16[32,32] = aten.mm.default(%9, %0)
    %11 : f32[32,32] = prim.convert(%10, f32)
    %12 : f32[32,32] = prim.add(%8, %11)
    %13 : bf16[32,32] = prim.convert(%12, bf16)
    %14 : bf16[32,32] = aten.mm.default(%13, %0)
    %15 : f32[32,32] = input tangent
    %16 : f32[32,32] = prim.mul(%15, %12)
    %17 : f32[32,32] = prim.mul(%16, %8)
    %18 : f32[32,32] = prim.mul(%17, %4)
    %19 : bf16[32,32] = prim.convert(%18, bf16)
    %20 : f32[32,32] = prim.convert(%14, f32)
    %21 : f32[32,32] = prim.add(%12, %20)
    return %21, %19
  })");
  const Partition p = partition(g, facts_of(g, 1));
  expect_legal(p);
  const Names made = operators(p.backward);
  EXPECT_EQ(std::count(made.begin(), made.end(), "prim.add"), 1);  // the first, which only inputs and one layer make
}

TEST(Partition, PartsOfOneResultAreSavedAsThatResult) {
  const Graph g = parse(R"(graph {
    %0 : bf16[32,64] = input user grad "x"
    %1 : bf16[64,64] = input user grad "w"
    %2 : bf16[32,64] = aten.mm.default(%0, %1)
    %3 : bf16[32,2,32] = prim.reshape(%2, [32, 2, 32])
    %4 : bf16[32,1,32]{64,64,1} = prim.slice(%3, [0, 0, 0], [32, 1, 32], [1, 1, 1])
    %5 : bf16[32,1,32]{64,64,1}+32 = prim.slice(%3, [0, 1, 0], [32, 2, 32], [1, 1, 1])
    %6 : bf16[32,1,32]{32,32,1} = aten.bmm.default(%4, %5)
    %7 : bf16[32,1,32] = input tangent
    %8 : bf16[32,1,32] = aten.bmm.default(%7, %4)
    %9 : bf16[32,1,32] = aten.bmm.default(%7, %5)
    %10 : bf16[32,2,32] = prim.cat(%[%8, %9], 1)
    %11 : bf16[32,64] = prim.reshape(%10, [32, 64])
    return %6, %11
  })");
  EXPECT_EQ(saved_by(partition(g, facts_of(g, 1))), 1);
}

// As timm has it: reshape, permute, unbind.
TEST(Partition, UnboundPartsAreSavedAsThatResult) {
  const Graph g = parse(R"(graph {
    %0 : bf16[32,64] = input user grad "x"
    %1 : bf16[64,64] = input user grad "w"
    %2 : bf16[32,64] = aten.mm.default(%0, %1)
    %3 : bf16[32,2,32] = prim.reshape(%2, [32, 2, 32])
    %4 : bf16[2,32,32]{32,64,1} = prim.permute(%3, [1, 0, 2])
    %5 : bf16[1,32,32]{32,64,1} = prim.slice(%4, [0, 0, 0], [1, 32, 32], [1, 1, 1])
    %6 : bf16[32,32]{64,1} = prim.reshape(%5, [32, 32])
    %7 : bf16[1,32,32]{32,64,1}+32 = prim.slice(%4, [1, 0, 0], [2, 32, 32], [1, 1, 1])
    %8 : bf16[32,32]{64,1}+32 = prim.reshape(%7, [32, 32])
    %9 : bf16[32,32] = aten.mm.default(%6, %8)
    %10 : bf16[32,32] = input tangent
    %11 : bf16[32,32] = aten.mm.default(%10, %6)
    %12 : bf16[32,32] = aten.mm.default(%10, %8)
    return %9, %11, %12
  })");
  EXPECT_EQ(saved_by(partition(g, facts_of(g, 1))), 1);
}

TEST(Partition, AResultThatEagerSavesIsNotSavedTwice) {
  const Graph g = parse(R"(graph {
    %0 : f32[1000] = input user grad "x"
    %1 : f32[1000] = prim.exp(%0)
    %2 : f32[1000] = input tangent
    %3 : f32[1000] = prim.mul(%2, %1)
    return %1, %3
  })");
  Joint facts = facts_of(g, 1);
  facts.results[0].saved = true;
  const Partition p = partition(g, facts);
  EXPECT_EQ(p.saved_bytes, 0);
  EXPECT_EQ(p.backward_inputs[1].kind, Partition::BackwardInput::Kind::kResult);
}

TEST(Partition, GradientsThatAreTangentsPassThrough) {
  const Graph g = parse(R"(graph {
    %0 : f32[4] = input user grad "x"
    %1 : f32[4] = input user grad "y"
    %2 : f32[4] = prim.add(%0, %1)
    %3 : f32[4] = input tangent
    return %2, %3, %3
  })");
  const Partition p = partition(g, facts_of(g, 1));
  EXPECT_TRUE(p.backward.nodes.empty());
  EXPECT_EQ(p.gradients[0].tangent, 0);
  EXPECT_EQ(p.gradients[1].tangent, 0);
}

TEST(Partition, WhatTheBackwardWritesIsDeclined) {
  const Graph g = parse(R"(graph {
    %0 : f32[4] = input user grad "x"
    %1 : f32[4] = prim.neg(%0)
    %2 : f32[4] = input tangent
    %3 : f32[4] = prim.neg(%2)
    mutate 0 = %3
    return %1, %3
  })");
  EXPECT_THROW(partition(g, facts_of(g, 1)), Declined);
}

TEST(Partition, BadNumbersAreRejected) {
  Partition p;
  EXPECT_THROW(decode({5}, p), UserError);
  EXPECT_THROW(decode({1, 9, 0, 0, 0, 0, 0, 0}, p), UserError);
  EXPECT_THROW(decode({0, 0, 0, 0, 0, 7}, p), UserError);
}

}  // namespace
}  // namespace flashover::graph
