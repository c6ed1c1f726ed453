// Sizes give the symbols their values; then everything else must follow from these.
#include "package/signature.h"

#include <algorithm>

#include "base/check.h"

namespace flashover::aot {

constexpr uint8_t kConstantInput = 3;  // graph::InputKind::kConstant

EntrySignature::EntrySignature(const PackagedEntry& entry, const plan::Plan& plan) : entry_(entry) {
  for (const Argument& a : entry.arguments) position_.push_back(a.tensor ? static_cast<int32_t>(tensors_++) : -1);
  const std::vector<bool> written = written_inputs(plan);
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    Input& in = inputs_.emplace_back(Input{.type = plan.inputs[i].type});
    for (sym::Expr e : in.type.sizes) in.sizes.push_back(size_of(e));
    for (sym::Expr e : in.type.strides) in.strides.push_back(size_of(e));
    in.written = written[i];
    in.constant = plan.inputs[i].kind == kConstantInput;
    writes_ |= in.written;
  }
}

EntrySignature::Size EntrySignature::size_of(sym::Expr e) {
  Size s{e, e.as_const().value_or(-1), -1};
  if (e.kind() != sym::Kind::kVar) return s;
  const auto at = std::ranges::find(symbols_, e);
  s.slot = static_cast<int32_t>(at - symbols_.begin());
  if (at == symbols_.end()) symbols_.push_back(e);
  return s;
}

bool EntrySignature::any_input_of(size_t weight, bool Input::*property) const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Binding& b = entry_.inputs[i];
    if (inputs_[i].*property && b.kind == Binding::Kind::kWeight && static_cast<size_t>(b.index) == weight) return true;
  }
  return false;
}

int64_t EntrySignature::value_of(sym::Expr e, const Values& values) const {
  return sym::evaluate(e, [&](sym::Expr v) {
    const auto at = std::ranges::find(symbols_, v);
    FLASHOVER_CHECK(at != symbols_.end()) << "a size symbol that no argument has";
    return values[static_cast<size_t>(at - symbols_.begin())];
  });
}

int64_t EntrySignature::value_of(const Size& s, const Values& values) const {
  if (s.slot >= 0) return values[static_cast<size_t>(s.slot)];
  return s.expression.is_const() ? s.number : value_of(s.expression, values);
}

void EntrySignature::refuse(size_t input, const GivenTensor& given, const std::string& why) const {
  std::string is = "no tensor with strides";
  if (given.strided) {
    is = std::string(info(given.dtype).name) + "[";
    for (size_t d = 0; d < given.sizes.size(); ++d) is += (d ? "," : "") + std::to_string(given.sizes[d]);
    is += "] on " + device_name(given.device);
  }
  throw UserError("entry " + entry_.name + ": the argument " +
                  entry_.arguments[static_cast<size_t>(entry_.inputs[input].index)].name + " must be " +
                  str(inputs_[input].type) + why + ", and is " + is);
}

void EntrySignature::read_sizes(size_t input, const GivenTensor& given, Values& values) const {
  const Input& in = inputs_[input];
  if (!given.strided || given.dtype != in.type.dtype || given.device != in.type.device ||
      given.sizes.size() != in.type.rank())
    refuse(input, given, "");
  for (size_t d = 0; d < in.sizes.size(); ++d)
    if (in.sizes[d].slot >= 0) values[static_cast<size_t>(in.sizes[d].slot)] = given.sizes[d];
}

void EntrySignature::check_sizes(size_t input, const GivenTensor& given, const Values& values) const {
  const Input& in = inputs_[input];
  for (size_t d = 0; d < in.sizes.size(); ++d)
    if (const int64_t want = value_of(in.sizes[d], values); given.sizes[d] != want)
      refuse(input, given, " with size " + std::to_string(want) + " in dimension " + std::to_string(d));
  const int64_t offset = entry_.arguments[static_cast<size_t>(entry_.inputs[input].index)].storage_offset;
  if (offset >= 0 && given.storage_offset != offset)
    refuse(input, given, " at offset " + std::to_string(offset) + " of its storage (as_strided counts from there)");
}

void EntrySignature::check_relations(const Values& values) const {
  for (const sym::SizeGuard& g : entry_.guards) {
    if (sym::satisfied(g.relation, value_of(g.a, values), value_of(g.b, values))) continue;
    std::string sizes;
    for (size_t s = 0; s < symbols_.size(); ++s)
      sizes += (s ? ", " : "") + std::string(symbols_[s].name()) + " is " + std::to_string(values[s]);
    throw UserError("entry " + entry_.name + " is for sizes with " + sym::str(g) + " alone, and " + sizes);
  }
}

EntrySignature::Values EntrySignature::check(std::span<const GivenTensor> given) const {
  if (given.size() != tensors_)
    throw UserError("entry " + entry_.name + " takes " + std::to_string(tensors_) + " tensors, and was given " +
                    std::to_string(given.size()));
  Values values(symbols_.size());
  const auto each_argument = [&](const auto& f) {
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (entry_.inputs[i].kind == Binding::Kind::kArgument) f(i, given[position(entry_.inputs[i])]);
  };
  each_argument([&](size_t i, const GivenTensor& t) { read_sizes(i, t, values); });
  each_argument([&](size_t i, const GivenTensor& t) { check_sizes(i, t, values); });
  check_relations(values);
  return values;
}

std::optional<std::vector<int64_t>> EntrySignature::other_strides(size_t input, const GivenTensor& given,
                                                                  const Values& values) const {
  const Input& in = inputs_[input];
  std::vector<int64_t> strides;
  bool same = given.plain, empty = false;
  for (size_t d = 0; d < in.strides.size(); ++d) {
    strides.push_back(value_of(in.strides[d], values));
    empty |= given.sizes[d] == 0;
    same &= given.sizes[d] <= 1 || given.strides[d] == strides.back();
  }
  if (same || (empty && given.plain)) return std::nullopt;
  if (in.written) refuse(input, given, " in the strides it had, since it is written");
  return strides;
}

void EntrySignature::refuse_shared_memory() const {
  throw UserError("entry " + entry_.name + " writes an argument that shares memory with another one: pass a copy");
}

}  // namespace flashover::aot
