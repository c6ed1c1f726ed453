#include "graph/passes.h"

#include "graph/passes/add_rows.h"
#include "graph/passes/attention.h"
#include "graph/passes/convolution.h"
#include "graph/passes/cse.h"
#include "graph/passes/cuda_library.h"
#include "graph/passes/dce.h"
#include "graph/passes/decompose.h"
#include "graph/passes/devices.h"
#include "graph/passes/exact.h"
#include "graph/passes/fold.h"
#include "graph/passes/functionalize.h"
#include "graph/passes/gelu.h"
#include "graph/passes/layout.h"
#include "graph/passes/linear.h"
#include "graph/passes/split_frozen.h"
#include "graph/passes/sum_products.h"

namespace flashover::graph {

const std::vector<Pass>& passes() {
  static const std::vector<Pass> list = {
      // NOLINTNEXTLINE(performance-unnecessary-value-param): every pass is handed its graph
      {"functionalize", [](Graph g) { return functionalize(g); }, Form::kTraced, Form::kFunctional},
      {"dce", dce, Form::kFunctional, Form::kFunctional},
      {"cse", cse, Form::kFunctional, Form::kFunctional},
      {"bring_operands", bring_operands, Form::kFunctional, Form::kFunctional},
      {"fold_batch_norm", fold_batch_norm, Form::kFunctional, Form::kFunctional},
      {"fuse_attention", [](Graph g) { return fuse_attention(std::move(g), {.own_f32 = true, .own_bf16 = true}); },
       Form::kFunctional, Form::kFunctional},
      {"written_gelu", [](Graph g) { return written_gelu(std::move(g), {}); }, Form::kFunctional, Form::kFunctional},
      {"convolution", [](Graph g) { return convolution(std::move(g), {.onednn_bf16 = true}); }, Form::kFunctional,
       Form::kFunctional},
      {"linear", [](Graph g) { return linear(std::move(g), {.onednn_bf16 = true}); }, Form::kFunctional,
       Form::kFunctional},
      {"linear_own", [](Graph g) { return linear(std::move(g), {.onednn_bf16 = true, .own_bf16 = true}); },
       Form::kFunctional, Form::kFunctional},
      {"cuda_library", [](Graph g) { return cuda_library(std::move(g), {}); }, Form::kFunctional, Form::kFunctional},
      {"decompose", [](Graph g) { return decompose(std::move(g)); }, Form::kFunctional, Form::kCore},
      {"fold", [](Graph g) { return fold(std::move(g)); }, Form::kCore, Form::kCore},
      {"own_attention", [](Graph g) { return own_attention(std::move(g), {.own_f32 = true, .own_bf16 = true}); },
       Form::kCore, Form::kCore},
      {"pass_numbers", pass_numbers, Form::kCore, Form::kCore},
      {"relax_layout", relax_layout, Form::kCore, Form::kCore},
      {"exact_functions", exact_functions, Form::kCore, Form::kCore},
      {"split_frozen", split_frozen, Form::kCore, Form::kCore},
      {"add_rows", [](Graph g) { return add_rows(std::move(g), {.own_f32 = true}); }, Form::kCore, Form::kCore},
      {"sum_products", [](Graph g) { return sum_products(std::move(g), {}); }, Form::kCore, Form::kCore},
  };
  return list;
}

const Pass* find_pass(std::string_view name) {
  for (const Pass& p : passes())
    if (name == p.name) return &p;
  return nullptr;
}

}  // namespace flashover::graph
