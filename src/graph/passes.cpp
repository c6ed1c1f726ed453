#include "graph/passes.h"

#include "graph/passes/cse.h"
#include "graph/passes/dce.h"
#include "graph/passes/decompose.h"
#include "graph/passes/functionalize.h"

namespace flashover::graph {

const std::vector<Pass>& passes() {
  static const std::vector<Pass> list = {
      {"functionalize", [](Graph g) { return functionalize(g); }, Form::kTraced, Form::kFunctional},
      {"dce", dce, Form::kFunctional, Form::kFunctional},
      {"cse", cse, Form::kFunctional, Form::kFunctional},
      {"decompose", decompose, Form::kFunctional, Form::kCore},
  };
  return list;
}

const Pass* find_pass(std::string_view name) {
  for (const Pass& p : passes())
    if (name == p.name) return &p;
  return nullptr;
}

}  // namespace flashover::graph
