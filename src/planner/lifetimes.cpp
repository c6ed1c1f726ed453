// See lifetimes.h.
#include "planner/lifetimes.h"

namespace flashover::planner {

using plan::TensorId;

std::vector<Lifetime> lifetimes(const plan::Plan& p) {
  std::vector<Lifetime> life(p.tensors.size());
  for (size_t i = 0; i < p.steps.size(); ++i) {
    const auto touch = [&](TensorId t) {
      Lifetime& l = life[plan::root(p, t)];
      if (l.first < 0) l.first = static_cast<int32_t>(i);
      l.last = static_cast<int32_t>(i);
    };
    plan::for_each_read(p.steps[i], touch);
    plan::for_each_write(p.steps[i], touch);
  }
  for (const plan::OutputRef& o : p.outputs)
    if (o.tensor >= 0) life[plan::root(p, o.tensor)].last = static_cast<int32_t>(p.steps.size());
  return life;
}

}  // namespace flashover::planner
