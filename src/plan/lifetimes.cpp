// See lifetimes.h.
#include "plan/lifetimes.h"

#include <algorithm>
#include <string_view>

namespace flashover::plan {

namespace {

constexpr std::string_view kWait = "_c10d_functional.wait_tensor.default";

size_t end_of_collective(const Plan& p, const std::vector<Step>& steps, size_t begun) {
  std::vector<TensorId> results;
  for_each_write(steps[begun], [&](TensorId t) { results.push_back(root(p, t)); });
  for (size_t i = begun + 1; i < steps.size(); ++i) {
    if (steps[i].op != kWait) continue;
    bool waits = false;
    for_each_read(steps[i], [&](TensorId t) { waits |= std::ranges::find(results, root(p, t)) != results.end(); });
    if (waits) return i;
  }
  return steps.size();
}

}  // namespace

bool begins_collective(std::string_view op) { return op.starts_with("_c10d_functional.") && op != kWait; }

static std::vector<Lifetime> lifetimes_over(const Plan& p, const std::vector<Step>& steps) {
  std::vector<Lifetime> life(p.tensors.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto last = static_cast<int32_t>(begins_collective(steps[i].op) ? end_of_collective(p, steps, i) : i);
    const auto touch = [&](TensorId t) {
      Lifetime& l = life[root(p, t)];
      if (l.first < 0) l.first = static_cast<int32_t>(i);
      l.last = std::max(l.last, last);
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
