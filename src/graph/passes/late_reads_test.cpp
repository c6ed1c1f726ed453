// A norm in evaluation mode reads its statistics by reference, and the backward nothing else of them.
#include "graph/passes/late_reads.h"

#include <gtest/gtest.h>

#include "graph/partition/partition.h"

namespace flashover::graph {
namespace {

// What a norm in evaluation mode reads of x * rsqrt(variance), twice: in its formula, and in the square before it.
Graph normed(bool training) {
  return parse(std::string(R"(graph {
    %0 : f32[8,4] = input user grad "x"
    %1 : f32[4] = input param grad "weight"
    %2 : f32[4] = input buffer "mean"
    %3 : f32[4] = input buffer "variance"
    %4 : f32[4] = prim.rsqrt(%3)
    %5 : f32[8,4]{0,1} = prim.broadcast(%4, [8, 4], [1])
    %6 : f32[8,4] = prim.mul(%0, %5)
    %7 : f32[8,4], %8 : f32[0], %9 : f32[0] = aten.native_batch_norm.default(%6, %1, None, %2, %3, )") +
               (training ? "true" : "false") +
               R"(, 0.1, 1e-05)
    %10 : f32[8,4] = input tangent
    %11 : f32[8,4], %12 : f32[4], %13 : f32[4] = )"
               R"(aten.native_batch_norm_backward.default(%10, %6, %1, %2, %3, %8, %9, )" +
               (training ? "true" : "false") + R"(, 1e-05, b[true, true, true])
    %14 : f32[8,4] = prim.mul(%11, %5)
    return %7, %14, %12
  })");
}
Joint facts_of_batch_norm(const Graph& g) {
  Joint j;
  j.present = true;
  j.results = {{.requires_grad = true, .tangent = 0}};
  j.tangents = {4};
  j.gradients = {0, 1};
  j.depends = {{0}, {0}};
  j.saved_inputs.assign(g.inputs.size(), true);
  return j;
}

TEST(LateReads, OnlyEagersFormulaReadsTheMemory) {
  Graph g = normed(false);
  Joint facts = facts_of_batch_norm(g);
  g = late_reads(std::move(g), facts);
  verify(g, Form::kFunctional);
  ASSERT_EQ(facts.late.size(), 2u);
  const Partition p = partition(g, facts);
  verify(p.backward, Form::kFunctional);
  using Kind = Partition::BackwardInput::Kind;
  std::vector<bool> memory(p.backward.values.size());
  size_t read = 0;
  for (size_t i = 0; i < p.backward_inputs.size(); ++i) {
    const bool buffer = p.backward.inputs[i].kind == InputKind::kBuffer;
    EXPECT_TRUE(!buffer || p.backward_inputs[i].kind == Kind::kInput);
    memory[static_cast<size_t>(p.backward.inputs[i].value)] = buffer;
    read += buffer;
  }
  EXPECT_EQ(read, 2u);
  for (const Node& n : p.backward.nodes)
    if (n.op->name != "aten.native_batch_norm_backward.default")
      for (const Arg& a : n.args)
        for_each_ref(a, [&](ValueId v) { EXPECT_FALSE(memory[static_cast<size_t>(v)]) << print(p.backward); });
}

TEST(LateReads, NoFormulaReadsThemInTraining) {
  Graph g = normed(true);
  Joint facts = facts_of_batch_norm(g);
  const std::string before = print(g);
  EXPECT_EQ(print(late_reads(std::move(g), facts)), before);
  EXPECT_TRUE(facts.late.empty());
}

}  // namespace
}  // namespace flashover::graph
