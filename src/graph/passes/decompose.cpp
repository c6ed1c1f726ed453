// Rounds of the decomposition table until no row applies; what a device cannot compute stays an operator.
#include "graph/passes/decompose.h"

#include <algorithm>

#include "base/check.h"
#include "graph/analysis/devices.h"
#include "graph/analysis/uninitialized.h"
#include "graph/decompose/decompose.h"
#include "graph/decompose/eagers_bits.h"
#include "graph/passes/dce.h"
#include "graph/rewrite/rewriter.h"
#include "ops/floats.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

bool on(const Graph& g, ValueId v, DeviceType type) { return v != kNoValue && g.type(v).device.type == type; }

// A program on a GPU has kernels for the GPU only: what it computes on the CPU beside that stays with eager's
// operators.
bool runs_on_cpu(const Graph& g, const Node& n) {
  return std::none_of(n.outs.begin(), n.outs.end(), [&](ValueId v) { return on(g, v, DeviceType::kCUDA); }) &&
         std::any_of(n.outs.begin(), n.outs.end(), [&](ValueId v) { return on(g, v, DeviceType::kCPU); });
}

// Prims know no complex numbers: such operators stay externs.
bool touches_complex(const Graph& g, const Node& n) {
  bool complex = false;
  const auto look = [&](ValueId v) { complex = complex || (v != kNoValue && info(g.type(v).dtype).complex); };
  for (ValueId v : n.outs) look(v);
  for (const Arg& a : n.args) for_each_ref(a, look);
  return complex;
}

bool gpu_knows(DType d) {
  return !info(d).complex && !is_eight_bit_float(d) && d != DType::kU16 && d != DType::kU32 && d != DType::kU64;
}

// Whether the GPU's kernels can do what nodes from `first` on say.
bool gpu_takes(const Graph& g, size_t first, bool deterministic) {
  for (size_t i = first; i < g.nodes.size(); ++i) {
    const Node& n = g.nodes[i];
    if (!n.op->is_prim()) continue;
    bool supported = true;
    const bool casts = n.op->prim == Prim::convert;
    const auto look = [&](ValueId v) {
      if (v == kNoValue) return;
      const DType d = g.type(v).dtype;
      supported = supported && (gpu_knows(d) || (casts && is_eight_bit_float(d)));
    };
    if (n.op->kind != ops::OpKind::kView) {  // views of such tensors are only strides
      for (ValueId v : n.outs) look(v);
      for (const Arg& a : n.args) for_each_ref(a, look);
    }
    if (!supported) return false;
    const bool scatter = n.op->prim == Prim::scatter, put = n.op->prim == Prim::index_put;
    if (!scatter && !put) continue;
    if (deterministic) return false;
    const DType d = g.type(n.outs[0]).dtype;
    const std::string* how = scatter ? std::get_if<std::string>(&n.args[4]) : nullptr;
    const bool add = put ? std::get_if<bool>(&n.args[3]) && *std::get_if<bool>(&n.args[3]) : how && *how == "add";
    const bool sized = d == DType::kI32 || d == DType::kI64;
    if (add && !sized && !is_floating(d)) return false;
    if (how && *how != "add" && *how != "none" && !(sized && (*how == "amax" || *how == "amin"))) return false;
  }
  return true;
}

// One round; `again` when a decomposition used operators that have decompositions themselves.
Graph round(Graph in, bool& again, const target::Providers& providers) {
  const std::vector<bool> no_contents = only_written(in);  // nothing has to fill them
  Graph out(std::move(in.facts));
  out.values = std::move(in.values);
  out.inputs = std::move(in.inputs);
  Replacement replacement(out.values.size());
  const bool gpu = uses_cuda(out);
  std::vector<bool> read(out.values.size());
  for (const Node& n : in.nodes)
    for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { read[v] = true; });
  for (const Output& o : in.outputs)
    if (o.value != kNoValue) read[o.value] = true;
  for (const Mutation& m : in.mutations) read[m.value] = true;
  static const ops::OpRow* const to_copy = ops::find(op::_to_copy);
  std::vector<ValueId> results;
  for (Node& n : in.nodes) {
    replacement.apply(n);
    const bool stays = (gpu && runs_on_cpu(out, n)) || touches_complex(out, n) ||
                       (providers.eagers_bits && !has_eagers_bits(out, n)) ||
                       (n.outs.size() == 1 && n.outs[0] != kNoValue && no_contents[n.outs[0]]);
    const Decomposition build = stays ? nullptr : find_decomposition(n.op);
    // A decomposition sees which results nothing reads.
    const std::vector<ValueId> all_outs = n.outs;
    if (build)
      for (ValueId& v : n.outs)
        if (v != kNoValue && !read[v]) v = kNoValue;
    const size_t first_node = out.nodes.size();
    results.clear();
    Builder b(out, n.location);
    const bool built = build && build(b, n, results);
    FLASHOVER_CHECK(built || out.nodes.size() == first_node)
        << n.op->name << ": a decomposition that refuses must append nothing";
    if (!built || (gpu && !gpu_takes(out, first_node, providers.deterministic))) {
      out.nodes.resize(first_node);
      n.outs = all_outs;
      out.nodes.push_back(std::move(n));
      continue;
    }
    FLASHOVER_CHECK(results.size() == n.outs.size())
        << n.op->name << ": its decomposition gives " << results.size() << " results";
    // The program's own conversions round for good; those of decompositions need not (see fold).
    if (n.op == to_copy)
      for (size_t i = first_node; i < out.nodes.size(); ++i)
        if (out.nodes[i].op->prim == Prim::convert) out.nodes[i].args.resize(3, Arg(true));
    for (size_t i = first_node; i < out.nodes.size(); ++i) again |= find_decomposition(out.nodes[i].op) != nullptr;
    for (size_t i = 0; i < results.size(); ++i) {
      if (n.outs[i] == kNoValue || results[i] == kNoValue) continue;
      const TensorType& expected = out.type(n.outs[i]);
      const TensorType& built = out.type(results[i]);
      FLASHOVER_CHECK(built.dtype == expected.dtype && same_sizes(built.sizes, expected.sizes))
          << n.op->name << ": decomposed into " << str(built) << " instead of " << str(expected) << " in "
          << print(n, out);
      results[i] = in_layout(b, first_node, results[i], expected);
      replacement.set(n.outs[i], results[i]);
    }
  }
  out.outputs = std::move(in.outputs);
  out.mutations = std::move(in.mutations);
  replacement.apply_results(out);
  return dce(std::move(out));
}

}  // namespace

Graph decompose(Graph g, const target::Providers& providers) {
  constexpr int kMaxRounds = 4;
  bool again = true;
  for (int i = 0; i < kMaxRounds && again; ++i) {
    again = false;
    g = round(std::move(g), again, providers);
  }
  return g;
}

}  // namespace flashover::graph
