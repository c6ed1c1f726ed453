// A table of names: operators that take ATen's arguments and fall back on it where they can do no better.
#include <string_view>
#include <utility>

#include "ops/names.h"
#include "planner/rewrites.h"

namespace flashover::planner {

void substitute_operators(Schedule& s, const Options& o) {
  static constexpr std::pair<std::string_view, std::string_view> kOwn[] = {
      {op::bernoulli_p, "flashover.bernoulli.default"},
      {op::embedding_dense_backward, "flashover.embedding_dense_backward.default"},
      {op::_embedding_bag_backward, "flashover._embedding_bag_backward.default"},
  };
  if (!o.own_operators) return;
  for (plan::Step& step : s.plan.steps)
    for (const auto& [aten, own] : kOwn)
      if (step.kind == plan::StepKind::kCall && step.op == aten && !step.out_variant) step.op = own;
}

}  // namespace flashover::planner
