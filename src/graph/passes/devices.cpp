// Inserts copies to the device, and hands one-element CPU tensors over as numbers.
#include "graph/passes/devices.h"

#include <algorithm>
#include <map>

#include "graph/builder.h"
#include "graph/passes/dce.h"

namespace flashover::graph {

bool uses_cuda(const Graph& g) {
  return std::any_of(g.values.begin(), g.values.end(),
                     [](const Value& v) { return v.type.device.type == DeviceType::kCUDA; });
}

Graph bring_operands(Graph g) {
  if (!uses_cuda(g)) return g;
  Graph out(std::move(g.facts));
  out.values = std::move(g.values);
  out.inputs = std::move(g.inputs);
  out.outputs = std::move(g.outputs);
  out.mutations = std::move(g.mutations);
  std::map<std::pair<ValueId, int8_t>, ValueId> brought;
  for (Node& n : g.nodes) {
    Device device;
    for (ValueId v : n.outs)
      if (v != kNoValue && out.type(v).device.type == DeviceType::kCUDA) device = out.type(v).device;
    const bool copies = n.op->name == "aten._to_copy.default" || n.op->name.starts_with("aten.copy");
    if (device.type == DeviceType::kCUDA && !copies) {
      const auto bring = [&](Ref& r) {
        if (r.id == kNoValue) return;
        const TensorType type = out.type(r.id);
        if (type.device.type != DeviceType::kCPU || type.rank() == 0) return;
        auto [it, fresh] = brought.try_emplace({r.id, device.index}, kNoValue);
        if (fresh) {
          TensorType there = type;
          there.device = device;
          there.offset = 0;
          there.strides = contiguous_strides(type.sizes);
          Builder b(out, n.location);
          it->second =
              b.emit("aten._to_copy.default",
                     {Ref{r.id}, type.dtype, Layout::kStrided, device, {}, false, MemoryFormat::kContiguous}, there);
        }
        r.id = it->second;
      };
      for (Arg& a : n.args) {
        if (auto* r = std::get_if<Ref>(&a)) bring(*r);
        if (auto* l = std::get_if<RefList>(&a))
          for (Ref& r : *l) bring(r);
      }
    }
    out.nodes.push_back(std::move(n));
  }
  return out;
}

Graph pass_numbers(Graph g) {
  if (!uses_cuda(g)) return g;
  std::vector<const Node*> full(g.values.size(), nullptr);
  for (const Node& n : g.nodes)
    if (n.op->name == "prim.full") full[n.outs[0]] = &n;
  for (Node& n : g.nodes) {
    if (n.op->is_prim || n.op->on_clones) continue;
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
  std::vector<bool> wanted(g.values.size());
  for (const Node& n : g.nodes)
    if (!n.op->is_prim)
      for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { wanted[v] = true; });
  for (const Output& o : g.outputs)
    if (o.owns_memory()) wanted[o.value] = true;
  for (const Mutation& m : g.mutations) wanted[m.value] = true;
  static const ops::Op* const full_prim = ops::find("prim.full");
  static const ops::Op* const full_aten = ops::find("aten.full.default");
  for (Node& n : g.nodes) {
    if (n.op != full_prim || !wanted[n.outs[0]]) continue;
    const TensorType& t = g.type(n.outs[0]);
    if (t.device.type != DeviceType::kCPU || !same_sizes(t.strides, contiguous_strides(t.sizes))) continue;
    n.args = {n.args[0], n.args[1], t.dtype, Layout::kStrided, t.device, false};
    n.op = full_aten;
  }
  return g;
}

}  // namespace flashover::graph
