// See substitute_operators.h: a table of names.
#include "plan/substitute_operators.h"

#include <string_view>
#include <utility>

#include "ops/names.h"

namespace flashover::plan {

void substitute_operators(Plan& p) {
  static constexpr std::pair<std::string_view, std::string_view> kOwn[] = {
      {op::bernoulli_p, "flashover.bernoulli.default"},
      {op::embedding_dense_backward, "flashover.embedding_dense_backward.default"},
      {op::_embedding_bag_backward, "flashover._embedding_bag_backward.default"},
  };
  for (Step& s : p.steps)
    for (const auto& [aten, own] : kOwn)
      if (s.kind == StepKind::kCall && s.op == aten && !s.out_variant) s.op = own;
}

}  // namespace flashover::plan
