// See lifetimes.h.
#include "plan/lifetimes.h"

namespace flashover::plan {

static std::vector<Lifetime> lifetimes_over(const Plan& p, const std::vector<Step>& steps) {
  std::vector<Lifetime> life(p.tensors.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto touch = [&](TensorId t) {
      Lifetime& l = life[root(p, t)];
      if (l.first < 0) l.first = static_cast<int32_t>(i);
      l.last = static_cast<int32_t>(i);
    };
    for_each_read(steps[i], touch);
    for_each_write(steps[i], touch);
  }
  return life;
}

std::vector<Lifetime> frozen_lifetimes(const Plan& p) { return lifetimes_over(p, p.frozen_steps); }

std::vector<Lifetime> lifetimes(const Plan& p) {
  std::vector<Lifetime> life = lifetimes_over(p, p.steps);
  for (const OutputRef& o : p.outputs)
    if (o.tensor >= 0) life[root(p, o.tensor)].last = static_cast<int32_t>(p.steps.size());
  return life;
}

}  // namespace flashover::plan
