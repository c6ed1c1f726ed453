// Chooses where each value is stored: inputs, outputs, what operators return, what is kept from call to call; the
// rest is in the arena.
#include "planner/value_tensors.h"

#include <algorithm>
#include <utility>

#include "ops/names.h"

namespace flashover::planner {

using loops::written_strides;
using plan::Step;
using plan::StepKind;
using plan::StorageKind;
using plan::TensorId;

size_t clones_of(const graph::Node& n) {
  size_t count = 0;
  if (n.op->on_clones)
    for (size_t i = 0; i < n.args.size() && i < 32; ++i)
      if (n.op->on_clones->mutates >> i & 1) graph::for_each_ref(n.args[i], [&](ValueId) { ++count; });
  return count;
}

Step allocation(const TensorType& t, TensorId to) {
  Step s;
  s.kind = StepKind::kCall;
  s.op = op::empty_strided;
  s.args = {t.sizes, t.strides, t.dtype, Layout::kStrided, t.device, false};
  s.writes = {to};
  return s;
}

ValueTensors::ValueTensors(const loops::LoopProgram& program, plan::Plan& plan)
    : program_(program), graph_(program.graph), plan_(plan), tensor_of_(program.graph.values.size(), -1) {
  for (const graph::Input& in : graph_.inputs) {
    const auto index = static_cast<int32_t>(plan_.inputs.size());
    plan_.inputs.push_back({graph_.type(in.value), static_cast<uint8_t>(in.kind), false});
    tensor_of_[in.value] = add({memory_type(in.value), StorageKind::kInput, index});
  }
  for (size_t i = 0; i < graph_.outputs.size(); ++i)
    if (graph_.outputs[i].owns_memory()) output_of_.try_emplace(graph_.outputs[i].value, static_cast<int32_t>(i));
}

TensorId ValueTensors::add(plan::Tensor t) {
  plan_.tensors.push_back(std::move(t));
  return static_cast<TensorId>(plan_.tensors.size()) - 1;
}

TensorId ValueTensors::temporary(TensorType type) {
  const TensorId t = add({std::move(type), StorageKind::kArena});
  allocate_beside(t);
  return t;
}

TensorType ValueTensors::memory_type(ValueId v) const {
  TensorType t = program_.facts[v].realised ? program_.memory[v] : graph_.type(v);
  t.offset = 0;
  t.wrapped_number = false;
  return t;
}

bool ValueTensors::is_clone(ValueId v) const {
  const graph::Node& n = graph_.nodes[program_.producers.of[v].node];
  const size_t clones = clones_of(n);
  return std::find(n.outs.end() - static_cast<std::ptrdiff_t>(clones), n.outs.end(), v) != n.outs.end();
}

// GPU kernels write to aligned addresses only; what lies elsewhere in its memory is copied there. Nothing writes an
// empty tensor.
bool ValueTensors::returned_where_kernels_write(const graph::Output& o, const TensorType& type) const {
  const bool aligned = plan_.device.type == DeviceType::kCPU || o.kind != graph::Output::Kind::kValue ||
                       sym::known_divisible(o.type.offset * info(type.dtype).bytes, 16);
  return aligned && std::none_of(type.sizes.begin(), type.sizes.end(), [](sym::Expr n) { return n.is_const(0); });
}

TensorId ValueTensors::of(ValueId v) {
  if (tensor_of_[v] >= 0) return tensor_of_[v];
  if (const loops::Strided& view = program_.views[v]; view.base != kNoValue) {
    plan::Tensor t{graph_.type(v), StorageKind::kView, of(view.base)};
    t.type.strides = view.strides;
    t.type.offset = view.offset;
    t.type.wrapped_number = false;
    return tensor_of_[v] = add(std::move(t));
  }
  plan::Tensor t{memory_type(v), StorageKind::kArena};
  const ops::OpRow& op = *graph_.nodes[program_.producers.of[v].node].op;
  const bool from_extern = !op.is_prim() && !op.generated && !is_clone(v);
  if (program_.facts[v].frozen) {
    t.storage = StorageKind::kFrozen;
  } else if (from_extern) {
    t.storage = StorageKind::kExtern;
  } else if (const auto it = output_of_.find(v);
             it != output_of_.end() && returned_where_kernels_write(graph_.outputs[it->second], t.type)) {
    return tensor_of_[v] = make_output(it->second, t.type);
  }
  // Operators promote a number in tensor's clothes differently.
  t.type.wrapped_number = graph_.type(v).wrapped_number && !from_extern;
  const bool made_by_kernel = !t.type.opaque && !from_extern;
  tensor_of_[v] = add(std::move(t));
  if (made_by_kernel) allocate_empty(tensor_of_[v]);
  return tensor_of_[v];
}

TensorId ValueTensors::make_output(int32_t i, TensorType type) {
  const graph::Output& o = graph_.outputs[i];
  type.strides = written_strides(o);
  type.offset = 0;
  const sym::Expr span = plan::span(type);
  sym::Expr offset = 0, memory = span;
  if (o.kind == graph::Output::Kind::kValue && !span.is_const(0)) {
    offset = o.type.offset;
    memory = sym::max(o.memory, offset + span);
  }
  if (offset.is_const(0) && sym::known_eq(memory, span)) return memory_of_[i] = add({type, StorageKind::kOutput, i});
  TensorType all = type;
  all.sizes = {memory};
  all.strides = {1};
  memory_of_[i] = add({std::move(all), StorageKind::kOutput, i});
  type.offset = offset;
  return add({std::move(type), StorageKind::kView, memory_of_[i]});
}

// A tensor without elements has no kernel; it still must come from somewhere.
void ValueTensors::allocate_empty(TensorId t) {
  plan::Tensor& tensor = plan_.tensors[t];
  const Sizes& sizes = tensor.type.sizes;
  if (std::none_of(sizes.begin(), sizes.end(), [](sym::Expr n) { return n.is_const(0); })) return;
  const bool frozen = tensor.storage == StorageKind::kFrozen;
  if (!frozen) tensor.storage = StorageKind::kExtern;
  (frozen ? plan_.frozen_steps : plan_.steps).push_back(allocation(tensor.type, t));
}

void ValueTensors::allocate_beside(TensorId t) {
  plan::Tensor& tensor = plan_.tensors[t];
  if (tensor.storage != StorageKind::kArena || tensor.type.device == plan_.device || tensor.type.opaque) return;
  tensor.storage = StorageKind::kExtern;
  plan_.steps.push_back(allocation(tensor.type, t));
}

}  // namespace flashover::planner
