// A call's tensors against the types that the plan was made for: sizes give the symbols their values, the rest must fit;
// other strides are copied into those that the plan counts on.
#include "aot/entry.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>

#include "base/check.h"
#include "run/program.h"
#include "torch/convert.h"

namespace flashover::aot {

constexpr uint8_t kConstantInput = 3;  // graph::InputKind::kConstant

LoadedEntry::LoadedEntry(const Manifest& manifest, const PackagedEntry& entry, plan::Plan plan)
    : manifest_(manifest), entry_(entry) {
  for (const Argument& a : entry.arguments) position_.push_back(a.tensor ? static_cast<int32_t>(tensors_++) : -1);
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    const TensorType& type = types_.emplace_back(plan.inputs[i].type);
    Input& in = inputs_.emplace_back();
    for (sym::Expr e : type.sizes) in.sizes.push_back(size_of(e));
    for (sym::Expr e : type.strides) in.strides.push_back(size_of(e));
    in.written = writes_argument(plan, i);
    in.constant = plan.inputs[i].kind == kConstantInput;
    writes_ |= in.written;
  }
  executable_ = run::load(std::move(plan));
}

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

LoadedEntry::Size LoadedEntry::size_of(sym::Expr e) {
  Size s{e, e.as_const().value_or(-1), -1};
  if (e.kind() != sym::Kind::kVar) return s;
  const auto at = std::ranges::find(symbols_, e);
  s.slot = static_cast<int32_t>(at - symbols_.begin());
  if (at == symbols_.end()) symbols_.push_back(e);
  return s;
}

bool LoadedEntry::any_input_of(size_t weight, bool Input::*property) const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Binding& b = entry_.inputs[i];
    if (inputs_[i].*property && b.kind == Binding::Kind::kWeight && static_cast<size_t>(b.index) == weight) return true;
  }
  return false;
}
bool LoadedEntry::writes_weight(size_t weight) const { return any_input_of(weight, &Input::written); }
bool LoadedEntry::counts_on_weight(size_t weight) const { return any_input_of(weight, &Input::constant); }

int64_t LoadedEntry::value_of(sym::Expr e, const Values& values) const {
  return sym::evaluate(e, [&](sym::Expr v) {
    const auto at = std::ranges::find(symbols_, v);
    FLASHOVER_CHECK(at != symbols_.end()) << "a size symbol that no argument has";
    return values[static_cast<size_t>(at - symbols_.begin())];
  });
}

int64_t LoadedEntry::value_of(const Size& s, const Values& values) const {
  if (s.slot >= 0) return values[static_cast<size_t>(s.slot)];
  return s.expression.is_const() ? s.number : value_of(s.expression, values);
}

void LoadedEntry::refuse(size_t input, const at::Tensor& given, const std::string& why) const {
  std::string is = "an undefined tensor";
  if (given.defined()) {
    is = std::string(c10::toString(given.scalar_type())) + "[";
    for (int64_t d = 0; d < given.dim(); ++d) is += (d ? "," : "") + std::to_string(given.size(d));
    is += "] on " + given.device().str();
  }
  throw UserError("entry " + entry_.name + ": the argument " +
                  entry_.arguments[static_cast<size_t>(entry_.inputs[input].index)].name + " must be " +
                  str(types_[input]) + why + ", and is " + is);
}

void LoadedEntry::read_sizes(size_t input, const at::Tensor& given, Values& values) const {
  const TensorType& type = types_[input];
  if (!given.defined() || given.layout() != at::kStrided || given.scalar_type() != aten::to_aten(type.dtype) ||
      given.device().type() != aten::to_aten(type.device).type() || given.dim() != static_cast<int64_t>(type.rank()))
    refuse(input, given, "");
  const Input& in = inputs_[input];
  for (size_t d = 0; d < in.sizes.size(); ++d)
    if (in.sizes[d].slot >= 0) values[static_cast<size_t>(in.sizes[d].slot)] = given.size(static_cast<int64_t>(d));
}

void LoadedEntry::check_sizes(size_t input, const at::Tensor& given, const Values& values) const {
  const Input& in = inputs_[input];
  for (size_t d = 0; d < in.sizes.size(); ++d)
    if (const int64_t want = value_of(in.sizes[d], values); given.size(static_cast<int64_t>(d)) != want)
      refuse(input, given, " with size " + std::to_string(want) + " in dimension " + std::to_string(d));
  const int64_t offset = entry_.arguments[static_cast<size_t>(entry_.inputs[input].index)].storage_offset;
  if (offset >= 0 && given.storage_offset() != offset)
    refuse(input, given, " at offset " + std::to_string(offset) + " of its storage (as_strided counts from there)");
}

at::Tensor LoadedEntry::laid_out(size_t input, const at::Tensor& given, const Values& values) const {
  const Input& in = inputs_[input];
  const bool plain = !given.is_conj() && !given.is_neg();
  std::vector<int64_t> strides;
  bool same = plain, empty = false;
  for (size_t d = 0; d < in.strides.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    strides.push_back(value_of(in.strides[d], values));
    empty |= given.size(dim) == 0;
    same &= given.size(dim) <= 1 || given.stride(dim) == strides.back();
  }
  if (same || (empty && plain)) return given;
  if (in.written) refuse(input, given, " in the strides it had, since it is written");
  at::Tensor copy = at::empty_strided(given.sizes(), strides, given.options());
  copy.copy_(given);
  return copy;
}

// A program that writes was made for tensors that share no memory.
void LoadedEntry::check_shared(const std::vector<at::Tensor>& inputs) const {
  for (size_t i = 0; i < inputs.size(); ++i)
    for (size_t k = 0; inputs_[i].written && k < inputs.size(); ++k)
      if (k != i && inputs[k].storage().unsafeGetStorageImpl() == inputs[i].storage().unsafeGetStorageImpl())
        throw UserError("entry " + entry_.name +
                        " writes an argument that shares memory with another one: pass a copy");
}

std::vector<at::Tensor> LoadedEntry::run(const std::vector<at::Tensor>& weights,
                                         std::span<const at::Tensor> arguments) const {
  if (arguments.size() != tensors_)
    throw UserError("entry " + entry_.name + " takes " + std::to_string(tensors_) + " tensors, and was given " +
                    std::to_string(arguments.size()));
  const at::NoGradGuard no_grad;
  const auto argument = [&](const Binding& b) -> const at::Tensor& {
    return arguments[static_cast<size_t>(position_[static_cast<size_t>(b.index)])];
  };
  Values values(symbols_.size());
  using Kind = Binding::Kind;
  const size_t count = inputs_.size();
  for (size_t i = 0; i < count; ++i)
    if (entry_.inputs[i].kind == Kind::kArgument) read_sizes(i, argument(entry_.inputs[i]), values);
  for (size_t i = 0; i < count; ++i)
    if (entry_.inputs[i].kind == Kind::kArgument) check_sizes(i, argument(entry_.inputs[i]), values);
  for (const sym::SizeGuard& g : entry_.guards)
    if (!sym::satisfied(g.relation, value_of(g.a, values), value_of(g.b, values))) {
      std::string sizes;
      for (size_t s = 0; s < symbols_.size(); ++s)
        sizes += (s ? ", " : "") + std::string(symbols_[s].name()) + " is " + std::to_string(values[s]);
      throw UserError("entry " + entry_.name + " is for sizes with " + sym::str(g) + " alone, and " + sizes);
    }
  std::vector<at::Tensor> inputs;
  inputs.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const Binding& b = entry_.inputs[i];
    inputs.push_back(b.kind == Kind::kWeight ? weights[static_cast<size_t>(b.index)]
                                             : laid_out(i, argument(b), values));
  }
  if (writes_) check_shared(inputs);
  std::vector<at::Tensor> outputs, results;
  executable_->run(inputs.data(), inputs.size(), outputs);
  for (const Binding& b : entry_.results) {
    const auto at = static_cast<size_t>(b.index);
    if (b.kind == Kind::kOutput)
      results.push_back(outputs[at]);
    else if (b.kind == Kind::kArgument)
      results.push_back(argument(b));
    else
      results.push_back(b.kind == Kind::kWeight ? weights[at] : at::Tensor());
  }
  return results;
}

}  // namespace flashover::aot
