// Orders steps by what they need of each other: what is needed for a step that may raise stays where it is.
#include <algorithm>
#include <iterator>
#include <utility>

#include "graph/graph.h"
#include "ops/ops.h"
#include "planner/rewrites.h"

namespace flashover::planner {
namespace {

using loops::Kernel;
using plan::Step;
using plan::StepKind;
using plan::StorageKind;
using plan::TensorId;

bool raises(const Step& s, const std::vector<Kernel>& kernels) {
  if (s.kind == StepKind::kLaunch) return !kernels[s.kernel].errors.empty() && !s.foreseen;
  return s.kind == StepKind::kCall && !s.foreseen && !plan::takes_memory(s) && plan::may_raise(s.op);
}

// By step: the earlier ones that must stay before it.
std::vector<std::vector<int32_t>> dependencies(const plan::Plan& p) {
  std::vector<std::vector<int32_t>> needs(p.steps.size());
  struct Access {
    int32_t written = -1;
    std::vector<int32_t> read;  // since then
  };
  std::vector<Access> access(p.tensors.size());
  int32_t last_effect = -1;
  for (size_t i = 0; i < p.steps.size(); ++i) {
    const Step& s = p.steps[i];
    const auto need = [&](int32_t step) {
      if (step >= 0 && step != static_cast<int32_t>(i)) needs[i].push_back(step);
    };
    const auto reads = [&](TensorId t) {
      Access& a = access[plan::root(p, t)];
      need(a.written);
      a.read.push_back(static_cast<int32_t>(i));
    };
    const auto writes = [&](TensorId t) {
      Access& a = access[plan::root(p, t)];
      need(a.written);
      for (int32_t r : a.read) need(r);
      a = {static_cast<int32_t>(i), {}};
    };
    const ops::OpRow* op = s.kind == StepKind::kCall ? ops::find(s.op) : nullptr;
    plan::for_each_read(s, reads);
    plan::for_each_write(s, writes);
    if (op && op->once()) {
      need(last_effect);
      last_effect = static_cast<int32_t>(i);
    }
  }
  return needs;
}

}  // namespace

void delay_input_writes(Schedule& s, const Options& /*o*/) {
  plan::Plan& p = s.plan;
  size_t end = p.steps.size();
  while (end > 0 && !raises(p.steps[end - 1], s.kernels)) --end;
  const auto writes_input = [&](const Step& step) {
    return std::any_of(step.writes.begin(), step.writes.end(), [&](TensorId t) {
      return t >= 0 && p.tensors[plan::root(p, t)].storage == StorageKind::kInput;
    });
  };
  const auto stop = p.steps.begin() + static_cast<std::ptrdiff_t>(end);
  if (std::none_of(p.steps.begin(), stop, writes_input)) return;
  const std::vector<std::vector<int32_t>> needs = dependencies(p);
  std::vector<bool> needed(end), late(end);  // for what may raise; because of what is late
  for (size_t i = end; i-- > 0;) {
    needed[i] = needed[i] || raises(p.steps[i], s.kernels);
    if (needed[i])
      for (int32_t n : needs[i]) needed[n] = true;
  }
  for (size_t i = 0; i < end; ++i)
    late[i] = !needed[i] && (writes_input(p.steps[i]) ||
                             std::any_of(needs[i].begin(), needs[i].end(), [&](int32_t n) { return late[n]; }));
  std::vector<Step> first, then;
  for (size_t i = 0; i < end; ++i) (late[i] ? then : first).push_back(std::move(p.steps[i]));
  first.insert(first.end(), std::make_move_iterator(then.begin()), std::make_move_iterator(then.end()));
  std::move(first.begin(), first.end(), p.steps.begin());
}

}  // namespace flashover::planner
