// Reads the steps.
#include "plan/contents.h"

#include <set>

namespace flashover::plan {

std::vector<TensorId> kept_frozen(const Plan& p) {
  std::vector<bool> keep(p.tensors.size());
  const auto use = [&](TensorId t) { keep[static_cast<size_t>(root(p, t))] = true; };
  for (const Step& s : p.steps) {
    for_each_read(s, use);
    for_each_write(s, use);
  }
  for (const OutputRef& o : p.outputs)
    if (o.tensor >= 0) use(o.tensor);
  std::vector<TensorId> kept;
  for (size_t i = 0; i < keep.size(); ++i)
    if (keep[i] && p.tensors[i].storage == StorageKind::kFrozen) kept.push_back(static_cast<TensorId>(i));
  return kept;
}

std::vector<std::string> operators_called(const Plan& p) {
  std::set<std::string> names;
  for (const std::vector<Step>* steps : {&p.frozen_steps, &p.steps})
    for (const Step& s : *steps)
      if (s.kind == StepKind::kCall) names.insert(s.op);
  return {names.begin(), names.end()};
}

void use_cuda_device(Plan& p, int8_t index) {
  const Device from = p.device, to{DeviceType::kCUDA, index};
  if (from.type != DeviceType::kCUDA) return;
  const auto move = [&](Device& d) {
    if (d == from) d = to;
  };
  for (InputSpec& i : p.inputs) move(i.type.device);
  for (Tensor& t : p.tensors) move(t.type.device);
  for (OutputRef& o : p.outputs) move(o.type.device);
  for (std::vector<Step>* steps : {&p.frozen_steps, &p.steps})
    for (Step& s : *steps)
      for (Arg& a : s.args)
        if (auto* d = std::get_if<Device>(&a)) move(*d);
  p.device = to;
}

}  // namespace flashover::plan
