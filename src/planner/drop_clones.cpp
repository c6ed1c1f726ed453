// Looks at each copy that an operator is to write: is what it is a copy of still needed?
#include <algorithm>

#include "ops/args.h"
#include "ops/ops.h"
#include "plan/lifetimes.h"
#include "planner/build_plan.h"
#include "planner/rewrites.h"

namespace flashover::planner {
namespace {

using plan::Plan;
using plan::Step;
using plan::StepKind;
using plan::StorageKind;
using plan::TensorId;

bool is_copy(const Step& s, const char* label) { return s.kind == StepKind::kCopy && s.label == label; }

bool same_memory(const TensorType& a, const TensorType& b) {
  return !a.opaque && !b.opaque && a.dtype == b.dtype && a.device == b.device && same_sizes(a.sizes, b.sizes) &&
         same_sizes(a.strides, b.strides) && a.offset.is_const(0) && b.offset.is_const(0) &&
         ops::is_dense(a.sizes, a.strides);
}

void replace(Plan& p, TensorId from, TensorId to) {
  const auto one = [&](TensorId& t) {
    if (t == from) t = to;
  };
  for (Step& s : p.steps) {
    std::ranges::for_each(s.reads, one);
    std::ranges::for_each(s.writes, one);
    for (Arg& a : s.args) {
      if (auto* r = std::get_if<Ref>(&a)) one(r->id);
      if (auto* l = std::get_if<RefList>(&a))
        for (Ref& r : *l) one(r.id);
    }
  }
  for (plan::OutputRef& o : p.outputs) one(o.tensor);
  for (plan::Tensor& t : p.tensors)
    if (t.storage == StorageKind::kView) one(t.index);
  p.tensors[from].storage = StorageKind::kView;
  p.tensors[from].index = to;
}

// A temporary that dies where it is copied is written itself.
bool take_temporary(Plan& p, size_t n) {
  const TensorId from = p.steps[n].reads[0], to = p.steps[n].writes[0];
  plan::Tensor &source = p.tensors[from], &copy = p.tensors[to];
  if (source.storage != StorageKind::kArena && source.storage != StorageKind::kExtern) return false;
  if (copy.storage != StorageKind::kArena &&
      (copy.storage != StorageKind::kOutput || source.storage != StorageKind::kArena))
    return false;
  if (from > to || !same_memory(source.type, copy.type)) return false;
  const std::vector<plan::Lifetime> life = plan::lifetimes(p);
  const auto at = static_cast<int32_t>(n);
  if (life[from].last != at || life[from].first == at || life[to].first != at) return false;
  if (copy.storage == StorageKind::kOutput) {
    source.storage = StorageKind::kOutput;
    source.index = copy.index;
  }
  replace(p, to, from);
  return true;
}

// On the CPU a call that raises is taken back: a copy is cheaper than what that takes, unless it is large.
bool may_be_undone(const Plan& p, TensorId copy) {
  constexpr int64_t kLarge = int64_t{1} << 20;
  if (p.device.type != DeviceType::kCPU || plan::bytes(p.tensors[copy].type).as_const().value_or(0) >= kLarge)
    return false;
  return std::ranges::any_of(p.steps, [&](const Step& s) {
    bool written = false;
    plan::for_each_mutated(s, [&](TensorId t) { written |= plan::root(p, t) == copy; });
    return written && plan::may_raise(s.op);
  });
}

// An input that gets the result is written itself, if nothing reads it in between or may still want its old content.
bool take_input(Plan& p, size_t n) {
  const TensorId input = p.steps[n].reads[0], copy = p.steps[n].writes[0];
  if (p.tensors[input].storage != StorageKind::kInput || p.tensors[copy].storage != StorageKind::kArena ||
      !same_memory(p.tensors[input].type, p.tensors[copy].type) || may_be_undone(p, copy))
    return false;
  size_t back = p.steps.size();
  for (size_t i = 0; i < p.steps.size(); ++i) {
    if (i == n) continue;
    const Step& s = p.steps[i];
    if (is_copy(s, kWriteBack) && s.writes[0] == input) {
      if (back < p.steps.size() || s.reads[0] != copy) return false;
      back = i;
      continue;
    }
    bool meets = false;
    plan::for_each_write(s, [&](TensorId t) { meets |= plan::root(p, t) == input; });
    if (i > n) plan::for_each_read(s, [&](TensorId t) { meets |= plan::root(p, t) == input; });
    if (meets) return false;
  }
  const std::vector<plan::Lifetime> life = plan::lifetimes(p);
  if (back < n || back == p.steps.size() || life[copy].first != static_cast<int32_t>(n) ||
      life[copy].last == static_cast<int32_t>(p.steps.size()))
    return false;
  p.steps.erase(p.steps.begin() + static_cast<std::ptrdiff_t>(back));
  replace(p, copy, input);
  return true;
}

}  // namespace

void drop_clones(Schedule& s, const Options& /*o*/) {
  Plan& p = s.plan;
  for (const auto take : {take_temporary, take_input})
    for (size_t n = p.steps.size(); n-- > 0;)
      if (is_copy(p.steps[n], kClone) && take(p, n)) p.steps.erase(p.steps.begin() + static_cast<std::ptrdiff_t>(n));
}

}  // namespace flashover::planner
