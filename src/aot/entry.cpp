// A call's tensors as the signature sees them; those with other strides are copied into what the program counts on.
#include "aot/entry.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <optional>

#include "run/program.h"
#include "torch/convert.h"

namespace flashover::aot {

LoadedEntry::LoadedEntry(const PackagedEntry& entry, plan::Plan plan, std::shared_ptr<const std::atomic<bool>> seen)
    : entry_(entry),
      signature_(entry, plan),
      executable_(run::load(std::move(plan), {.inputs_seen = std::move(seen)})) {}

// By input of the plan: the weight, or null for an argument.
static std::vector<c10::TensorImpl*> weight_inputs(const PackagedEntry& entry, const std::vector<at::Tensor>& weights) {
  std::vector<c10::TensorImpl*> inputs;
  for (const Binding& b : entry.inputs)
    inputs.push_back(b.kind == Binding::Kind::kWeight ? weights[static_cast<size_t>(b.index)].unsafeGetTensorImpl()
                                                      : nullptr);
  return inputs;
}

static bool depends_on_weights_alone(const plan::Plan& plan, const PackagedEntry& entry) {
  return std::ranges::all_of(run::inputs_of_frozen_part(plan), [&](int32_t i) {
    return entry.inputs[static_cast<size_t>(i)].kind == Binding::Kind::kWeight;
  });
}

void LoadedEntry::supply(const std::vector<at::Tensor>& weights, std::vector<at::Tensor> tensors) {
  if (!depends_on_weights_alone(plan(), entry_)) return;
  tensors.resize(plan().tensors.size());
  executable_->supply_frozen(weight_inputs(entry_, weights).data(), std::move(tensors));
}

std::vector<at::Tensor> frozen_tensors(plan::Plan plan, const PackagedEntry& entry,
                                       const std::vector<at::Tensor>& weights) {
  if (!depends_on_weights_alone(plan, entry)) return {};
  return run::load(std::move(plan))->frozen_tensors(weight_inputs(entry, weights).data());
}

static GivenTensor given_of(const at::Tensor& t) {
  GivenTensor given;
  if (!t.defined() || t.layout() != at::kStrided || (!t.is_cpu() && !t.is_cuda())) return given;
  given.strided = true;
  given.plain = !t.is_conj() && !t.is_neg();
  given.dtype = aten::from_aten(t.scalar_type());
  given.device = aten::from_aten(t.device());
  given.sizes = {t.sizes().data(), t.sizes().size()};
  given.strides = {t.strides().data(), t.strides().size()};
  given.storage_offset = t.storage_offset();
  return given;
}

// A program that writes was made for tensors that share no memory.
void LoadedEntry::check_shared(const std::vector<at::Tensor>& inputs) const {
  for (size_t i = 0; i < inputs.size(); ++i)
    for (size_t k = 0; signature_.writes(i) && k < inputs.size(); ++k)
      if (k != i && inputs[k].storage().unsafeGetStorageImpl() == inputs[i].storage().unsafeGetStorageImpl())
        signature_.refuse_shared_memory();
}

std::vector<at::Tensor> LoadedEntry::run(const std::vector<at::Tensor>& weights,
                                         std::span<const at::Tensor> arguments) const {
  using Kind = Binding::Kind;
  const at::NoGradGuard no_grad;
  std::vector<GivenTensor> given;
  for (const at::Tensor& t : arguments) given.push_back(given_of(t));
  const EntrySignature::Values values = signature_.check(given);
  std::vector<at::Tensor> inputs;
  inputs.reserve(entry_.inputs.size());
  for (size_t i = 0; i < entry_.inputs.size(); ++i) {
    const Binding& b = entry_.inputs[i];
    if (b.kind == Kind::kWeight) {
      inputs.push_back(weights[static_cast<size_t>(b.index)]);
      continue;
    }
    const size_t at = signature_.position(b);
    const at::Tensor& t = arguments[at];
    const std::optional<std::vector<int64_t>> strides = signature_.other_strides(i, given[at], values);
    inputs.push_back(strides ? at::empty_strided(t.sizes(), *strides, t.options()).copy_(t) : t);
  }
  if (signature_.writes()) check_shared(inputs);
  std::vector<at::Tensor> outputs, results;
  executable_->run(inputs.data(), inputs.size(), outputs);
  for (const Binding& b : entry_.results) {
    const auto at = static_cast<size_t>(b.index);
    if (b.kind == Kind::kOutput)
      results.push_back(outputs[at]);
    else if (b.kind == Kind::kArgument)
      results.push_back(arguments[signature_.position(b)]);
    else
      results.push_back(b.kind == Kind::kWeight ? weights[at] : at::Tensor());
  }
  return results;
}

}  // namespace flashover::aot
