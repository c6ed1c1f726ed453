// An input is frozen that only frozen steps read, or nothing does, and that is not the user's.
#include "graph/graph.h"
#include "planner/rewrites.h"

namespace flashover::planner {

using plan::TensorId;

void mark_frozen_inputs(Schedule& s, const Options& /*o*/) {
  plan::Plan& p = s.plan;
  std::vector<bool> live(p.inputs.size());
  const auto touch = [&](TensorId t) {
    const plan::Tensor& memory = p.tensors[plan::root(p, t)];
    if (memory.storage == plan::StorageKind::kInput) live[memory.index] = true;
  };
  for (const plan::Step& step : p.steps) {
    plan::for_each_read(step, touch);
    plan::for_each_write(step, touch);
  }
  for (const plan::OutputRef& o : p.outputs)
    if (o.alias_input >= 0) live[o.alias_input] = true;
  for (size_t i = 0; i < p.inputs.size(); ++i)
    p.inputs[i].frozen = !live[i] && p.inputs[i].kind != static_cast<uint8_t>(graph::InputKind::kUser);
}

}  // namespace flashover::planner
