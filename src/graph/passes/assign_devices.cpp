// See assign_devices.h.
#include "graph/passes/assign_devices.h"

#include <algorithm>

namespace flashover::graph {

Graph assign_devices(Graph g, Device device) {
  if (device.type == DeviceType::kCPU) return g;
  std::vector<bool> leaves(g.values.size());  // operators see it, or the caller
  for (const Node& n : g.nodes)
    if (!n.op->is_prim())
      for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { leaves[static_cast<size_t>(v)] = true; });
  for (const Output& o : g.outputs)
    if (o.value != kNoValue) leaves[static_cast<size_t>(o.value)] = true;
  for (const Mutation& m : g.mutations) leaves[static_cast<size_t>(m.value)] = true;
  std::vector<bool> there(g.values.size());
  for (size_t v = 0; v < g.values.size(); ++v) there[v] = g.values[v].type.device == device;
  for (const Node& n : g.nodes) {
    if (!n.op->is_prim()) continue;
    bool any = std::none_of(n.outs.begin(), n.outs.end(), [&](ValueId v) {
      return v != kNoValue && (leaves[static_cast<size_t>(v)] || !g.type(v).sizes.empty());
    });
    for (const Arg& a : n.args) for_each_ref(a, [&](ValueId v) { any |= there[static_cast<size_t>(v)]; });
    if (!any) continue;
    for (ValueId v : n.outs) {
      if (v == kNoValue) continue;
      there[static_cast<size_t>(v)] = true;
      g.values[static_cast<size_t>(v)].type.device = device;
    }
  }
  return g;
}

}  // namespace flashover::graph
