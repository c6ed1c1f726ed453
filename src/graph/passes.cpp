// The list of passes; see passes.h.
#include "graph/passes.h"

#include <string>

#include "base/check.h"
#include "graph/passes/accumulate_rows.h"
#include "graph/passes/assign_devices.h"
#include "graph/passes/convolution.h"
#include "graph/passes/cse.h"
#include "graph/passes/cuda_library.h"
#include "graph/passes/dce.h"
#include "graph/passes/decompose.h"
#include "graph/passes/expand_encoder_layers.h"
#include "graph/passes/flush_denormals.h"
#include "graph/passes/fold.h"
#include "graph/passes/fold_batch_norm.h"
#include "graph/passes/functionalize.h"
#include "graph/passes/fuse_attention.h"
#include "graph/passes/hoist_slices.h"
#include "graph/passes/insert_device_copies.h"
#include "graph/passes/keep_errors.h"
#include "graph/passes/late_reads.h"
#include "graph/passes/linear.h"
#include "graph/passes/low_precision.h"
#include "graph/passes/lower_complex.h"
#include "graph/passes/lower_random.h"
#include "graph/passes/merge_products.h"
#include "graph/passes/one_row.h"
#include "graph/passes/recognize_gelu.h"
#include "graph/passes/relax_layout.h"
#include "graph/passes/require_exact.h"
#include "graph/passes/row_by_row.h"
#include "graph/passes/scalarize_operands.h"
#include "graph/passes/select_attention.h"
#include "graph/passes/split_frozen.h"
#include "graph/passes/widen_products.h"

namespace flashover::graph {

namespace {

// A pass that asks nothing of the machine, one that asks what the libraries can do, one that asks for the device.
template <auto f>
Graph plain(Graph g, const PassContext&) {
  return f(std::move(g));
}
template <auto f>
Graph by_machine(Graph g, const PassContext& c) {
  return f(std::move(g), c.providers);
}
template <auto f>
Graph by_device(Graph g, const PassContext& c) {
  return f(std::move(g), c.device);
}
// What makes another computation of the program's, which the option strict_numerics forbids.
template <auto pass>
Graph unless_eagers_bits(Graph g, const PassContext& c) {
  return c.providers.eagers_bits ? std::move(g) : pass(std::move(g), c);
}
// ... or which chooses by the number of rows.
template <auto pass>
Graph unless_bits_are_promised(Graph g, const PassContext& c) {
  return c.providers.batch_invariant ? std::move(g) : unless_eagers_bits<pass>(std::move(g), c);
}
// NOLINTNEXTLINE(performance-unnecessary-value-param): every pass is handed its graph
Graph run_functionalize(Graph g, const PassContext&) { return functionalize(g); }
Graph run_late_reads(Graph g, const PassContext& c) {
  return c.joint ? late_reads(std::move(g), *c.joint) : std::move(g);
}
Graph run_fold(Graph g, const PassContext& c) { return fold(std::move(g), {c.providers.strict_numerics}); }

using enum Pipeline;
constexpr Form kTraced = Form::kTraced, kFunctional = Form::kFunctional, kCore = Form::kCore;
constexpr Pass kPasses[] = {
    {"functionalize",
     run_functionalize,
     kTraced,
     kFunctional,
     {kProgram, kCustom},
     "",
     "no writes and no aliases: everything after relies on values that never change"},
    {"keep_errors",
     plain<keep_errors>,
     kFunctional,
     kFunctional,
     {kProgram},
     "functionalize",
     "what nobody reads and raises in eager stays; before dce"},
    {"dce",
     plain<dce>,
     kFunctional,
     kFunctional,
     {kProgram, kCustom},
     "functionalize keep_errors",
     "what only a write that was overwritten had needed goes"},
    {"late_reads",
     run_late_reads,
     kFunctional,
     kFunctional,
     {kProgram, kCustom},
     "functionalize",
     "statistics that eager's backward reads from memory become inputs of the backward, before cse merges them"},
    {"cse",
     plain<cse>,
     kFunctional,
     kFunctional,
     {kProgram},
     "functionalize late_reads",
     "Python makes masks, positions and casts again layer by layer: one of each, before patterns count uses"},
    {"expand_encoder_layers",
     unless_eagers_bits<plain<expand_encoder_layers>>,
     kFunctional,
     kFunctional,
     {kProgram},
     "cse",
     "on the CPU: fast paths of transformer layers become products that are packed, and attention of ours"},
    {"hoist_slices",
     by_machine<hoist_slices>,
     kFunctional,
     kFunctional,
     {kProgram},
     "cse expand_encoder_layers",
     "rows that nobody reads are not computed; before libraries are chosen by the number of rows"},
    {"insert_device_copies",
     plain<insert_device_copies>,
     kFunctional,
     kFunctional,
     {kProgram},
     "cse",
     "operands on the CPU of an operator on a GPU are copied there, since patterns and kernels know one device"},
    {"fold_batch_norm",
     unless_eagers_bits<by_machine<fold_batch_norm>>,
     kFunctional,
     kFunctional,
     {kProgram},
     "",
     "fixed statistics go into the convolution's weight; a batch norm is whole before decompose only"},
    {"fuse_attention",
     unless_bits_are_promised<by_machine<fuse_attention>>,
     kFunctional,
     kFunctional,
     {kProgram},
     "cse",
     "attention that is written out becomes one operator; softmax is whole before decompose only"},
    {"flush_denormals",
     by_machine<flush_denormals>,
     kFunctional,
     kFunctional,
     {kProgram},
     "fuse_attention",
     "softmax's weights that only products see are no denormal numbers; of the products that attention left"},
    {"recognize_gelu",
     unless_eagers_bits<by_machine<recognize_gelu>>,
     kFunctional,
     kFunctional,
     {kProgram},
     "cse",
     "GELU that is written out becomes the operator, which passes further down give to libraries"},
    {"widen_products",
     by_machine<widen_products>,
     kFunctional,
     kFunctional,
     {kProgram},
     "fold_batch_norm fuse_attention",
     "on a CPU without 16-bit arithmetic: products, convolutions and attention of 16-bit floats run in f32"},
    {"row_by_row",
     by_machine<row_by_row>,
     kFunctional,
     kFunctional,
     {kProgram},
     "fold_batch_norm widen_products",
     "option batch_invariant: products, convolutions and attention whose rows do not know of each other"},
    {"convolution",
     unless_bits_are_promised<by_machine<convolution>>,
     kFunctional,
     kFunctional,
     {kProgram},
     "hoist_slices fold_batch_norm recognize_gelu widen_products",
     "on the CPU: which library computes it, its weight packed, its activation in it"},
    {"linear",
     unless_bits_are_promised<by_machine<linear>>,
     kFunctional,
     kFunctional,
     {kProgram},
     "recognize_gelu widen_products",
     "on the CPU: which library computes a product, its weight packed, its activation in it"},
    {"cuda_library",
     unless_bits_are_promised<by_machine<cuda_library>>,
     kFunctional,
     kFunctional,
     {kProgram},
     "fold_batch_norm",
     "on a GPU: products and convolutions in the form in which cuBLAS and cuDNN are quick"},
    {"decompose",
     by_machine<decompose>,
     kFunctional,
     kCore,
     {kProgram},
     "hoist_slices fold_batch_norm fuse_attention flush_denormals recognize_gelu widen_products row_by_row convolution "
     "linear cuda_library",
     "operators become prims; what has no row stays an extern call"},
    {"lower_complex",
     plain<lower_complex>,
     kCore,
     kCore,
     {kProgram},
     "decompose",
     "prims know no complex numbers: what remains of them is ATen's"},
    {"lower_random",
     by_machine<lower_random>,
     kCore,
     kCore,
     {kProgram},
     "decompose",
     "random operators that no pattern has taken become prims, so that kernels draw where they use"},
    {"fold",
     run_fold,
     kCore,
     kCore,
     {kProgram, kFewTangents},
     "decompose lower_random",
     "what follows from the program alone is computed, what changes nothing goes: masks, scalars, chains of views"},
    {"select_attention",
     unless_bits_are_promised<by_machine<select_attention>>,
     kCore,
     kCore,
     {kProgram},
     "fold",
     "ATen's attention on the CPU becomes ours; masks that change nothing are gone only now"},
    {"one_row",
     unless_bits_are_promised<plain<one_row>>,
     kCore,
     kCore,
     {kProgram},
     "select_attention",
     "on a GPU: products and attention of one row become sums, which fuse with what is around them"},
    {"low_precision",
     unless_bits_are_promised<by_machine<low_precision>>,
     kCore,
     kCore,
     {kProgram},
     "one_row",
     "products of few rows unpack weights of 8 and 4 bits where they read them; what is unpacked is prims only now"},
    {"cse_core",
     plain<cse>,
     kCore,
     kCore,
     {kProgram},
     "decompose fold",
     "decompositions of neighbours share work: casts, reciprocal counts"},
    {"scalarize_operands",
     plain<scalarize_operands>,
     kCore,
     kCore,
     {kProgram},
     "fold",
     "on a GPU: operators take numbers as numbers, not as 0-d tensors on the CPU"},
    {"relax_layout",
     unless_eagers_bits<plain<relax_layout>>,
     kCore,
     kCore,
     {kProgram},
     "decompose fold",
     "layouts between prims follow the operands; copies that only restored eager's layout go"},
    {"dce_core", plain<dce>, kCore, kCore, {kProgram, kFewTangents}, "fold", "what all this left unread goes"},
    {"require_exact",
     plain<require_exact>,
     kCore,
     kCore,
     {kProgram},
     "dce_core",
     "where equal values must stay equal no kernel approximates; before the cut, so that both halves agree"},
    {"accumulate_rows",
     by_machine<accumulate_rows>,
     kCore,
     kCore,
     {kBackward},
     "dce_core",
     "a table's gradient is added to the rest of its sum row by row; before merge_products, which would make a "
     "table"},
    {"merge_products",
     by_machine<merge_products>,
     kCore,
     kCore,
     {kBackward},
     "accumulate_rows",
     "the gradient of a weight that is used again and again is one product, or each starts from the sum so far"},
    {"split_frozen",
     plain<split_frozen>,
     kCore,
     kCore,
     {kSchedule},
     "dce_core merge_products",
     "what depends on parameters alone is computed once; what that is depends on what all others left"},
    {"assign_devices",
     by_device<assign_devices>,
     kCore,
     kCore,
     {kSchedule},
     "split_frozen",
     "prims on numbers beside CUDA tensors run on that device: the rules of single prims do not say so"},
};

}  // namespace

std::span<const Pass> passes() { return kPasses; }

const char* str(Pipeline p) {
  static constexpr const char* kNames[] = {"core", "backward", "few_tangents", "custom", "schedule"};
  return kNames[static_cast<size_t>(p)];
}

const Pass* find_pass(std::string_view name) {
  for (const Pass& p : passes())
    if (name == p.name) return &p;
  return nullptr;
}

Graph run_pass(std::string_view name, Graph g, const PassContext& context) {
  const Pass* pass = find_pass(name);
  if (!pass) throw UserError("no pass named " + std::string(name));
  g = pass->run(std::move(g), context);
  verify(g, pass->output);
  return g;
}

Graph run_pipeline(Pipeline p, Graph g, const PassContext& context) {
  for (const Pass& pass : passes())
    if (pass.pipelines.contains(p)) g = pass.run(std::move(g), context);
  return g;
}

}  // namespace flashover::graph
