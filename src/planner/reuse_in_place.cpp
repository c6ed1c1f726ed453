// Tries each result of a kernel over each of its operands.
#include <algorithm>

#include "plan/lifetimes.h"
#include "planner/overlay.h"
#include "planner/rewrites.h"

namespace flashover::planner {
namespace {

using plan::Plan;
using plan::StorageKind;
using plan::TensorId;

// Memory of the plan's own that an operator on a GPU returned.
bool result_of_operator(const Plan& p, TensorId t) {
  const plan::Tensor& tensor = p.tensors[t];
  return p.device.type != DeviceType::kCPU && tensor.storage == StorageKind::kExtern && !tensor.type.opaque &&
         tensor.type.device == p.device;
}

// What a launch overwrites.
struct Launch {
  const Plan& p;
  size_t number;
  const loops::Kernel& kernel;
  const plan::Step& step = p.steps[number];
  std::vector<TensorId> taken = {};  // operands that a result lies over

  // Whether result w may lie over operand r, the memory of `root`, by what is read and when.
  bool may_take(size_t w, size_t r, TensorId root, const plan::Lifetime& life) const {
    const TensorId in = step.reads[r], out = step.writes[w];
    const size_t param = step.reads.size() + w;
    return life.last == static_cast<int32_t>(number) && life.first != static_cast<int32_t>(number) &&
           std::ranges::count_if(step.reads, [&](TensorId t) { return plan::root(p, t) == root; }) == 1 &&
           std::ranges::find(taken, root) == taken.end() && p.tensors[in].type.dtype == p.tensors[out].type.dtype &&
           kernel.params[r].numel == kernel.params[param].numel &&
           overlay(kernel, static_cast<int32_t>(r), static_cast<int32_t>(param));
  }
};

// Lays result w of a launch over an operand, if there is one that allows it.
void lay_over(Schedule& s, Launch& launch, size_t w, std::vector<plan::Lifetime>& life) {
  Plan& p = s.plan;
  const TensorId out = launch.step.writes[w];
  for (size_t r = 0; r < launch.step.reads.size(); ++r) {
    const TensorId in = launch.step.reads[r];
    sym::Expr offset = 0;
    const TensorId root = plan::root(p, in, &offset);
    const bool returned = result_of_operator(p, root) && offset.is_const(0) && root < out &&
                          p.tensors[root].type.dtype == p.tensors[out].type.dtype;
    if (!returned && p.tensors[in].storage != StorageKind::kArena) continue;
    if (!launch.may_take(w, r, root, life[root])) continue;
    launch.taken.push_back(root);
    if (!returned) {
      s.over[out] = in;
      return;
    }
    plan::Tensor& result = p.tensors[out];
    if (!sym::known_le(plan::span(result.type), plan::span(p.tensors[root].type))) continue;
    result.storage = StorageKind::kView;
    result.index = root;
    result.type.offset = 0;
    life[root].last = life[out].last;
    return;
  }
}

}  // namespace

void reuse_in_place(Schedule& s, const Options& /*o*/) {
  const Plan& p = s.plan;
  std::vector<plan::Lifetime> life = plan::lifetimes(p);
  s.over.assign(p.tensors.size(), -1);
  for (size_t n = 0; n < p.steps.size(); ++n) {
    const plan::Step& step = p.steps[n];
    // (Products read whole rows and columns while they write.)
    if (step.kind != plan::StepKind::kLaunch || static_cast<size_t>(step.kernel) >= s.kernels.size()) continue;
    Launch launch{.p = p, .number = n, .kernel = s.kernels[step.kernel]};
    for (size_t w = 0; w < step.writes.size(); ++w) {
      const TensorId out = step.writes[w];
      if (p.tensors[out].storage == StorageKind::kArena && life[out].first == static_cast<int32_t>(n) &&
          s.over[out] < 0)
        lay_over(s, launch, w, life);
    }
  }
}

}  // namespace flashover::planner
