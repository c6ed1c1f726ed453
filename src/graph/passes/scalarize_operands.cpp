// 0-d tensors that are numbers become numbers in the arguments of extern operators.
#include "graph/passes/scalarize_operands.h"

#include "graph/analysis/devices.h"
#include "graph/passes/dce.h"
#include "ops/names.h"

namespace flashover::graph {

Graph scalarize_operands(Graph g) {
  if (!uses_cuda(g)) return g;
  std::vector<const Node*> full(g.values.size(), nullptr);
  for (const Node& n : g.nodes)
    if (n.op->prim == Prim::full) full[n.outs[0]] = &n;
  for (Node& n : g.nodes) {
    if (n.op->is_prim() || n.op->on_clones) continue;
    for (Arg& a : n.args) {
      const auto* r = std::get_if<Ref>(&a);
      if (!r || r->id == kNoValue || !full[r->id]) continue;
      const TensorType& t = g.type(r->id);
      if (t.rank() != 0 || !t.wrapped_number || t.device.type != DeviceType::kCPU) continue;
      a = Arg(full[r->id]->args[1]);
    }
  }
  g = dce(std::move(g));
  // What is left of constants on the CPU is ATen's to make: there are no kernels there.
  std::vector<bool> read(g.values.size());
  for (const Node& n : g.nodes)
    if (!n.op->is_prim())
      for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { read[v] = true; });
  for (const Output& o : g.outputs)
    if (o.owns_memory()) read[o.value] = true;
  for (const Mutation& m : g.mutations) read[m.value] = true;
  static const ops::OpRow* const full_aten = ops::find(op::full);
  for (Node& n : g.nodes) {
    if (n.op->prim != Prim::full || !read[n.outs[0]]) continue;
    const TensorType& t = g.type(n.outs[0]);
    if (t.device.type != DeviceType::kCPU || !same_sizes(t.strides, contiguous_strides(t.sizes))) continue;
    n.args = {n.args[0], n.args[1], t.dtype, Layout::kStrided, t.device, false};
    n.op = full_aten;
  }
  return g;
}

}  // namespace flashover::graph
