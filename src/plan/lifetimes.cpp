// See lifetimes.h.
#include "plan/lifetimes.h"

namespace flashover::plan {

std::vector<Lifetime> lifetimes(const Plan& p) {
  std::vector<Lifetime> life(p.tensors.size());
  for (size_t i = 0; i < p.steps.size(); ++i) {
    const auto touch = [&](TensorId t) {
      Lifetime& l = life[root(p, t)];
      if (l.first < 0) l.first = static_cast<int32_t>(i);
      l.last = static_cast<int32_t>(i);
    };
    for_each_read(p.steps[i], touch);
    for_each_write(p.steps[i], touch);
  }
  for (const OutputRef& o : p.outputs)
    if (o.tensor >= 0) life[root(p, o.tensor)].last = static_cast<int32_t>(p.steps.size());
  return life;
}

}  // namespace flashover::plan
