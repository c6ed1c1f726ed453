// Looks at every operator once: what it touches, where it runs, whether it can be recorded.
#include "run/cuda/graph_plan.h"

#include "ops/ops.h"
#include "run/extern_call.h"

namespace flashover::run::cuda {

using plan::StepKind;
using plan::StorageKind;
using plan::TensorId;

namespace {

bool on_cpu(const Program& p, TensorId t) { return p.root_tensor(t).type.device.type == DeviceType::kCPU; }

void find_pool_outputs(const Program& p, const LoadOptions& options, GraphPlan& g) {
  g.pool_outputs = options.pool_outputs;
  g.pool_outputs.resize(p.plan.outputs.size());
  for (size_t i = 0; i < g.pool_outputs.size(); ++i) {
    const TensorId t = p.plan.outputs[i].tensor;
    g.pool_outputs[i] = g.pool_outputs[i] && t >= 0 && !on_cpu(p, t) && !p.shapes[t].opaque;
    if (g.pool_outputs[i]) g.pool_bytes += p.tensor_bytes[t];
    g.any_pool_outputs = g.any_pool_outputs || g.pool_outputs[i];
  }
}

// All of its tensors are on the CPU, and there are some.
bool is_host_step(const Program& p, const plan::Step& s) {
  bool host = true, any = false;
  const auto look = [&](TensorId t) { host &= t < 0 || on_cpu(p, t), any |= t >= 0; };
  plan::for_each_read(s, look);
  for (TensorId t : s.writes) look(t);
  return host && any;
}

void look_at_operators(const Program& p, GraphPlan& g) {
  size_t at = 0;
  const auto mark = [&](TensorId t) {
    if (t < 0) return;
    const plan::Tensor& root = p.root_tensor(t);
    if (on_cpu(p, t)) g.apart.try_emplace(at, "operators use CPU and CUDA tensors");
    if (root.storage == StorageKind::kInput) g.operator_inputs[root.index] = true;
    if (root.storage == StorageKind::kOutput) g.operator_outputs[root.index] = true;
  };
  for (size_t n = 0; n < p.plan.steps.size(); ++n) {
    const plan::Step& s = p.plan.steps[n];
    at = n;
    if (s.kind == StepKind::kLaunch) continue;
    if (is_host_step(p, s)) {
      g.host_steps[n] = true;
      continue;
    }
    if (s.kind == StepKind::kCall) {
      const ExternCall& c = *p.calls[p.instructions[n].call];
      if (c.op->handle.hasTag(at::Tag::cudagraph_unsafe)) g.apart.try_emplace(n, s.op + " is not made for them");
      g.draws = g.draws || (ops::find(s.op)->nondeterministic && !draws_nothing(c));
    }
    plan::for_each_read(s, mark);
    plan::for_each_write(s, mark);
  }
  for (const LateOutput& o : p.late_outputs) {
    if (on_cpu(p, p.plan.outputs[o.index].tensor)) continue;
    g.operator_outputs[o.index] = true;
    mark(p.plan.outputs[o.index].tensor);
  }
}

}  // namespace

GraphPlan plan_graph(const Program& p, const LoadOptions& options) {
  GraphPlan g;
  g.addresses = options.addresses;
  if (g.addresses.empty())
    for (const plan::InputSpec& i : p.plan.inputs)
      g.addresses.push_back(i.kind != 0 ? InputAddress::kStatic : InputAddress::kVaries);
  g.operator_inputs.assign(p.plan.inputs.size(), false);
  g.operator_outputs.assign(p.plan.outputs.size(), false);
  g.host_steps.assign(p.plan.steps.size(), false);
  find_pool_outputs(p, options, g);
  look_at_operators(p, g);
  g.slot_launch.assign(p.table_size, -1);
  for (const Instruction& in : p.instructions)
    if (in.kind == StepKind::kLaunch && in.launch >= 0)
      for (size_t i = 0; i < in.step->reads.size() + in.step->writes.size(); ++i)
        g.slot_launch[in.table + i] = in.launch;
  return g;
}

}  // namespace flashover::run::cuda
