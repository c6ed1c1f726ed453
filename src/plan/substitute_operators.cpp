// See substitute_operators.h: a table of names.
#include "plan/substitute_operators.h"

#include <string_view>
#include <utility>

namespace flashover::plan {

void substitute_operators(Plan& p) {
  static constexpr std::pair<std::string_view, std::string_view> kOwn[] = {
      {"aten.bernoulli.p", "flashover.bernoulli.default"},
      {"aten.embedding_dense_backward.default", "flashover.embedding_dense_backward.default"},
      {"aten._embedding_bag_backward.default", "flashover._embedding_bag_backward.default"},
  };
  for (Step& s : p.steps)
    for (const auto& [aten, own] : kOwn)
      if (s.kind == StepKind::kCall && s.op == aten && !s.out_variant) s.op = own;
}

}  // namespace flashover::plan
