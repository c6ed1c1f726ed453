// An operator's tensors are copied to where it computes.
#include "graph/passes/insert_device_copies.h"

#include <map>

#include "graph/analysis/devices.h"
#include "graph/builder.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

// Kernels read numbers where they lie, but what is nothing but the number has to lie on the device itself.
bool is_the_number_itself(const Graph& g, const Node& n) {
  return op::is_any_of(n.op->name, {op::full, op::full_like, op::fill_Tensor, op::fill_Scalar}) &&
         g.type(n.outs[0]).rank() == 0;
}

// The number that the program knows without a tensor; null: it is computed of tensors.
const Arg* number_of(const Graph& g, ValueId v) {
  for (const Node& n : g.nodes)
    if (n.op->prim == Prim::full && n.outs[0] == v) return &n.args[1];
  return nullptr;
}

}  // namespace

Graph insert_device_copies(Graph g) {
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
    const bool copies = op::is_any_of(n.op->name, {op::_to_copy, op::copy, op::copy_});
    if (device.type == DeviceType::kCUDA && !copies) {
      const auto bring = [&](Ref& r) {
        if (r.id == kNoValue) return;
        const TensorType type = out.type(r.id);
        if (type.device.type != DeviceType::kCPU || (type.rank() == 0 && !is_the_number_itself(out, n))) return;
        auto [it, fresh] = brought.try_emplace({r.id, device.index}, kNoValue);
        if (fresh) {
          TensorType there = type;
          there.device = device;
          there.offset = 0;
          there.strides = contiguous_strides(type.sizes);
          const Arg* number = type.rank() == 0 ? number_of(out, r.id) : nullptr;
          const Arg known = number ? *number : Arg();
          Builder b(out, n.location);
          it->second =
              number ? b.full({}, known, type.dtype, device)
                     : b.emit(op::_to_copy,
                              {Ref{r.id}, type.dtype, Layout::kStrided, device, {}, false, MemoryFormat::kContiguous},
                              there);
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

}  // namespace flashover::graph
