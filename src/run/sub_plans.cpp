// Loads the sub-plans of a plan that is cut, and hands tensors from one to the next.
#include "run/sub_plans.h"

#include <algorithm>
#include <utility>

#include "run/tensor_memory.h"

namespace flashover::run {

Cuts even_cuts(const plan::Plan& plan, size_t count) {
  Cuts cuts;
  const size_t steps = plan.steps.size();
  count = std::min(count, steps);
  for (size_t i = 1; i <= count; ++i) cuts.ends.push_back(steps * i / count);
  return cuts;
}

std::optional<Cuts> cuts_around(const plan::Plan& plan, const std::map<size_t, std::string>& apart) {
  constexpr size_t kWorthAGraph = 4;
  Cuts cuts;
  size_t first = 0, work = 0;
  const auto close = [&](size_t end, bool graph) {
    if (end == first) return;
    if (!cuts.graphs.empty() && !graph && !cuts.graphs.back())
      cuts.ends.back() = end;
    else
      cuts.ends.push_back(end), cuts.graphs.push_back(graph);
    first = end;
    work = 0;
  };
  for (size_t i = 0; i <= plan.steps.size(); ++i) {
    const bool alone = apart.count(i) != 0;
    if (alone || i == plan.steps.size()) close(i, work >= kWorthAGraph);
    if (i == plan.steps.size()) break;
    if (alone)
      close(i + 1, false);
    else
      work += plan.steps[i].kind != plan::StepKind::kRelease && !plan::takes_memory(plan.steps[i]);
  }
  const bool any = std::find(cuts.graphs.begin(), cuts.graphs.end(), true) != cuts.graphs.end();
  return any ? std::optional(std::move(cuts)) : std::nullopt;
}

bool SubPlans::cut(const Cuts& cuts, const std::vector<InputAddress>& addresses,
                   const std::vector<bool>& pool_outputs) {
  std::optional<plan::PlanPartition> partition = plan::split(plan_of_sizes(program_), cuts.ends);
  if (!partition) return false;
  passed_ = static_cast<size_t>(partition->passed);
  std::vector<bool> in_pool(passed_);
  std::vector<SubPlan> made;
  for (size_t i = 0; i < partition->sub_plans.size(); ++i) {
    plan::PlanPartition::SubPlan& p = partition->sub_plans[i];
    LoadOptions how{
        .graphs = i < cuts.graphs.size() && cuts.graphs[i], .converts = program_.converts, .sub_plan = true};
    for (int32_t in : p.inputs)
      how.addresses.push_back(in < 0              ? in_pool[-1 - in] ? InputAddress::kGraphPool : InputAddress::kVaries
                              : addresses.empty() ? InputAddress::kStatic
                                                  : addresses[in]);
    for (const auto& target : p.outputs) {
      how.pool_outputs.push_back(how.graphs &&
                                 (target.output < 0 || (!pool_outputs.empty() && pool_outputs[target.output])));
      if (target.passed >= 0) in_pool[target.passed] = how.pool_outputs.back();
    }
    made.push_back(
        {load_(std::move(p.plan), how, program_.code, depth_ + 1), std::move(p.inputs), std::move(p.outputs), {}});
  }
  std::vector<bool> needed(passed_);
  for (auto sub_plan = made.rbegin(); sub_plan != made.rend(); ++sub_plan)
    for (int32_t in : sub_plan->inputs) {
      sub_plan->last.push_back(in < 0 && !needed[-1 - in]);
      if (in < 0) needed[-1 - in] = true;
    }
  sub_plans_ = std::move(made);
  exist_.store(true, std::memory_order_release);
  return true;
}

int64_t SubPlans::graph_replays() const {
  int64_t most = 0;
  if (exist())
    for (const SubPlan& p : sub_plans_) most = std::max(most, p.loaded.executable->counters().graph_replays);
  return most;
}

void SubPlans::run(c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs) const {
  std::vector<at::Tensor> passed(passed_), made;
  bool left_a_trace = false;
  for (const SubPlan& p : sub_plans_) {
    std::vector<at::Tensor> given;
    for (size_t i = 0; i < p.inputs.size(); ++i) {
      if (p.inputs[i] >= 0) {
        given.push_back(borrow(inputs[p.inputs[i]]));
      } else {
        at::Tensor& t = passed[-1 - p.inputs[i]];
        given.push_back(p.last[i] ? std::move(t) : t);
      }
    }
    try {
      p.loaded.executable->run_consuming(std::move(given), made);
    } catch (Mismatch& m) {
      m.clean = m.clean && !left_a_trace;
      m.step = SIZE_MAX;
      throw;
    } catch (...) {
      failure_was_undone() = failure_was_undone() && !left_a_trace;
      throw;
    }
    left_a_trace |= p.loaded.leaves_a_trace;
    for (size_t i = 0; i < made.size(); ++i) {
      if (p.outputs[i].passed >= 0) passed[p.outputs[i].passed] = made[i];
      if (p.outputs[i].output >= 0) outputs[p.outputs[i].output] = std::move(made[i]);
    }
  }
}

}  // namespace flashover::run
