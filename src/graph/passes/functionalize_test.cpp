// What golden texts cannot show: values that are asked for besides the graph (all else: test/functionalize.ir).
#include "graph/passes/functionalize.h"

#include <gtest/gtest.h>

namespace flashover::graph {
namespace {

// %3 holds what %1 holds, and %2 is an in-place result: %1 under another name.
constexpr const char* kTraced = R"(graph {
  %0 : f32[4] s0 = input user "x"
  %1 : f32[4] s1 = aten.tanh.default(%0)
  %2 : f32[4] s1 = aten.relu_.default(%1)
  %3 : f32[4] s1 = aten.alias.default(%1)
  %4 : f32[4] s2 = aten.exp.default(%3)
  %5 : f32[4] s3 = aten.sin.default(%1)
  return %4, %5
}
)";

const Node& maker(const Graph& g, ValueId v) {
  for (const Node& n : g.nodes)
    if (n.outs.at(0) == v) return n;
  throw std::out_of_range("no node makes it");
}
ValueId operand(const Graph& g, size_t output) {
  return std::get<Ref>(maker(g, g.outputs.at(output).value).args.at(0)).id;
}

TEST(Functionalize, AViewAndItsBaseAreOneValue) {
  const Graph g = functionalize(parse(kTraced));
  EXPECT_EQ(operand(g, 0), operand(g, 1));
}

TEST(Functionalize, ValuesThatStandApartHaveNoOtherNames) {
  std::vector<ValueId> apart = {2, 3};
  const Graph g = functionalize(parse(kTraced), apart);
  EXPECT_EQ(operand(g, 0), apart[1]);
  EXPECT_EQ(operand(g, 1), apart[0]);
  EXPECT_EQ(maker(g, apart[1]).op->prim, Prim::copy);
  EXPECT_EQ(std::get<Ref>(maker(g, apart[1]).args.at(0)).id, apart[0]);
}

}  // namespace
}  // namespace flashover::graph
