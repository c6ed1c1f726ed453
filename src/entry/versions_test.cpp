// Version counters after a call: each input's moves as eager's operators would have moved it, whatever the runner did.
#include "entry/versions.h"

#include <ATen/ops/zeros.h>

#include "guards/interpreter_test.h"

namespace flashover::entry {
namespace {

TEST(Versions, WrittenInputsOfATracedGraph) {
  graph::Graph g = graph::parse(R"(graph {
  %0 : f32[2] = input user "x"
  %1 : f32[2] = input user "y"
  %2 : f32[2] = aten.add_.Tensor(%1, %0, 1)
  return %2
}
)");
  for (size_t i = 0; i < 3; ++i) g.values[i].storage = i == 0 ? 0 : 1;  // as a trace tells
  EXPECT_EQ(written_inputs(g), std::vector<int32_t>{1});
  g.values[0].storage = 1;
  EXPECT_EQ(written_inputs(g), (std::vector<int32_t>{0, 1})) << "x is a view of y";
}

TEST(Versions, CountersMoveByTheirSteps) {
  const at::Tensor a = at::zeros({2}), b = at::zeros({2}), c = at::zeros({2});
  // b is written twice; c shares b's counter in eager; the runner moves a's on its own account.
  const Step step = counting_versions(
      [](std::vector<at::Tensor>&& inputs, std::vector<at::Tensor>& outputs) {
        inputs[0].unsafeGetTensorImpl()->bump_version();
        outputs.push_back(inputs[1]);
      },
      {0, 2, -2}, {1});
  const int64_t before[] = {a._version(), b._version(), c._version()};
  std::vector<at::Tensor> outputs;
  step({a, b, c}, outputs);
  EXPECT_EQ(a._version(), before[0]);
  EXPECT_EQ(b._version(), before[1] + 2);
  EXPECT_EQ(c._version(), before[2] + 2);
  EXPECT_EQ(outputs.size(), 1u);
}

TEST(Versions, OwnCountersAreGivenOut) {
  const at::Tensor x = at::zeros({2});
  std::vector<at::Tensor> outputs{x.view({2}), x.view({2})};
  give_own_counters({{0, 0}, {1, -1}}, &x, outputs);
  x.unsafeGetTensorImpl()->bump_version();
  EXPECT_EQ(outputs[0]._version(), x._version()) << "the input's";
  EXPECT_EQ(outputs[1]._version(), 0) << "nobody else's";
  EXPECT_TRUE(outputs[1].is_alias_of(x));
}

}  // namespace
}  // namespace flashover::entry
