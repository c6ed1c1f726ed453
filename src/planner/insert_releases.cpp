// A release behind each step after which some results of operators are needed no more.
#include <utility>

#include "plan/lifetimes.h"
#include "planner/rewrites.h"

namespace flashover::planner {

using plan::Step;
using plan::TensorId;

void insert_releases(Schedule& s, const Options& /*o*/) {
  plan::Plan& p = s.plan;
  const std::vector<plan::Lifetime> life = plan::lifetimes(p);
  std::vector<std::vector<TensorId>> dying(p.steps.size());
  for (size_t t = 0; t < p.tensors.size(); ++t)
    if (p.tensors[t].storage == plan::StorageKind::kExtern && life[t].last >= 0 &&
        life[t].last < static_cast<int32_t>(p.steps.size()))
      dying[life[t].last].push_back(static_cast<TensorId>(t));
  std::vector<Step> steps;
  for (size_t i = 0; i < p.steps.size(); ++i) {
    steps.push_back(std::move(p.steps[i]));
    if (dying[i].empty()) continue;
    Step release;
    release.kind = plan::StepKind::kRelease;
    release.reads = std::move(dying[i]);
    steps.push_back(std::move(release));
  }
  p.steps = std::move(steps);
}

}  // namespace flashover::planner
