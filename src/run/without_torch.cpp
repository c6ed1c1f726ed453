// Looks each call up in the table of hand-written operators.
#include "run/without_torch.h"

#include <algorithm>
#include <set>
#include <variant>

#include "cpu_kernels/plain.h"
#include "ops/args.h"
#include "ops/names.h"

namespace flashover::run {

using plan::Step;
using plan::StepKind;
using plan::TensorId;

const Step* packing_of(const plan::Plan& p, TensorId t) {
  for (const Step& s : p.frozen_steps)
    if (s.kind == StepKind::kCall && s.writes == std::vector<TensorId>{t} && !s.args.empty()) {
      const cpu::PlainOperator* op = cpu::find_plain(s.op);
      return op && op->packed_elements && std::holds_alternative<Ref>(s.args[0]) ? &s : nullptr;
    }
  return nullptr;
}

// Whether own kernels compute what this call asks of one of torch's libraries.
static bool is_computed_here(const plan::Plan& p, const Step& s) {
  const auto is_f32 = [&](TensorId t) { return t < 0 || p.tensors[static_cast<size_t>(t)].type.dtype == DType::kF32; };
  for (const Arg& a : s.args) {
    if (const auto* r = std::get_if<Ref>(&a); r && r->id != kNoValue && !is_f32(r->id)) return false;
    if (const auto* list = std::get_if<RefList>(&a))
      if (std::ranges::any_of(*list, [&](const Ref& r) { return !is_f32(r.id); })) return false;
  }
  const auto is = [&](std::string_view name) { return op::without_overload(s.op) == name; };
  constexpr size_t kTransposed = 6, kBeta = 3;
  if (is("aten.convolution") &&
      !(s.args.size() > kTransposed && std::get_if<bool>(&s.args[kTransposed]) && !std::get<bool>(s.args[kTransposed])))
    return false;
  if (is("aten.addmm") || is("aten.baddbmm"))
    for (size_t i = kBeta; i < s.args.size(); ++i)
      if (!ops::is_number(s.args[i], 1)) return false;
  return std::ranges::all_of(s.writes, is_f32);
}

// As the step calls it.
static bool is_hand_written(const plan::Plan& p, const Step& s) {
  const cpu::PlainOperator* op = cpu::find_plain(s.op);
  if (!op || s.mutates != 0) return false;
  if (s.writes.empty()) return !op->of_library;  // flashover.computed, whose results are its operands
  if (s.writes[0] < 0) return false;
  if (op->of_library ? !is_computed_here(p, s) : s.writes.size() != 1) return false;
  for (const Arg& a : s.args)
    if (const auto* list = std::get_if<RefList>(&a))
      if (std::ranges::any_of(*list, [](const Ref& r) { return r.id == kNoValue; })) return false;
  return (op->packed_elements != nullptr) == p.tensors[static_cast<size_t>(s.writes[0])].type.opaque;
}

std::vector<std::string> needs_torch(const plan::Plan& p) {
  std::set<std::string> found;
  const auto dtype = [&](TensorId t) { return p.tensors[static_cast<size_t>(t)].type.dtype; };
  for (const std::vector<Step>* steps : {&p.frozen_steps, &p.steps})
    for (const Step& s : *steps) {
      if (s.kind == StepKind::kCall && !is_hand_written(p, s)) found.insert(s.op);
      if (s.kind == StepKind::kCopy && dtype(s.reads[0]) != dtype(s.writes[0])) found.insert("a copy that converts");
    }
  for (size_t t = 0; found.empty() && t < p.tensors.size(); ++t)
    if (p.tensors[t].type.opaque && !packing_of(p, static_cast<TensorId>(t))) found.insert("memory of a library's");
  return {found.begin(), found.end()};
}

std::vector<std::string> replaced_without_torch(const plan::Plan& p) {
  std::set<std::string> found;
  for (const std::vector<Step>* steps : {&p.frozen_steps, &p.steps})
    for (const Step& s : *steps)
      if (s.kind == StepKind::kCall && is_hand_written(p, s) && cpu::find_plain(s.op)->of_library) found.insert(s.op);
  return {found.begin(), found.end()};
}

}  // namespace flashover::run
