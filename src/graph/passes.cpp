// The rows: a name, the function, the forms it takes and promises, and the machine of its tests.
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

namespace {

// A pass that asks nothing of the machine.
template <auto f>
Graph plain(Graph g, const Providers&) {
  return f(std::move(g));
}
template <auto f>
Graph by_machine(Graph g, const Providers& p) {
  return f(std::move(g), p);
}
// NOLINTNEXTLINE(performance-unnecessary-value-param): every pass is handed its graph
Graph run_functionalize(Graph g, const Providers&) { return functionalize(g); }
Graph run_decompose(Graph g, const Providers&) { return decompose(std::move(g)); }
Graph run_fold(Graph g, const Providers&) { return fold(std::move(g)); }

}  // namespace

const std::vector<Pass>& passes() {
  constexpr Form kFunctional = Form::kFunctional, kCore = Form::kCore;
  static const Providers own = {.own_f32 = true, .own_bf16 = true}, onednn = {.onednn_bf16 = true};
  static const std::vector<Pass> list = {
      {"functionalize", run_functionalize, Form::kTraced, kFunctional, {}},
      {"dce", plain<dce>, kFunctional, kFunctional, {}},
      {"cse", plain<cse>, kFunctional, kFunctional, {}},
      {"bring_operands", plain<bring_operands>, kFunctional, kFunctional, {}},
      {"fold_batch_norm", plain<fold_batch_norm>, kFunctional, kFunctional, {}},
      {"fuse_attention", by_machine<fuse_attention>, kFunctional, kFunctional, own},
      {"written_gelu", by_machine<written_gelu>, kFunctional, kFunctional, {}},
      {"convolution", by_machine<convolution>, kFunctional, kFunctional, onednn},
      {"linear", by_machine<linear>, kFunctional, kFunctional, onednn},
      {"linear_own", by_machine<linear>, kFunctional, kFunctional, {.onednn_bf16 = true, .own_bf16 = true}},
      {"cuda_library", by_machine<cuda_library>, kFunctional, kFunctional, {}},
      {"decompose", run_decompose, kFunctional, kCore, {}},
      {"fold", run_fold, kCore, kCore, {}},
      {"own_attention", by_machine<own_attention>, kCore, kCore, own},
      {"pass_numbers", plain<pass_numbers>, kCore, kCore, {}},
      {"relax_layout", plain<relax_layout>, kCore, kCore, {}},
      {"exact_functions", plain<exact_functions>, kCore, kCore, {}},
      {"split_frozen", plain<split_frozen>, kCore, kCore, {}},
      {"add_rows", by_machine<add_rows>, kCore, kCore, {.own_f32 = true}},
      {"sum_products", by_machine<sum_products>, kCore, kCore, {}},
  };
  return list;
}

Providers common(Providers a, const Providers& b) {
  a.mkl = a.mkl && b.mkl;
  a.onednn = a.onednn && b.onednn;
  a.onednn_bf16 = a.onednn_bf16 && b.onednn_bf16;
  a.onednn_f16 = a.onednn_f16 && b.onednn_f16;
  a.own_f32 = a.own_f32 && b.own_f32;
  a.own_bf16 = a.own_bf16 && b.own_bf16;
  return a;
}

const Pass* find_pass(std::string_view name) {
  for (const Pass& p : passes())
    if (name == p.name) return &p;
  return nullptr;
}

}  // namespace flashover::graph
