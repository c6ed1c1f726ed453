// Temporaries that share memory (Schedule::over) are one block.
#include <algorithm>

#include "plan/arena.h"
#include "plan/lifetimes.h"
#include "planner/rewrites.h"

namespace flashover::planner {

using plan::StorageKind;
using plan::TensorId;

void assign_arena_offsets(Schedule& s, const Options& /*o*/) {
  plan::Plan& p = s.plan;
  const std::vector<plan::Lifetime> life = plan::lifetimes(p);
  std::vector<TensorId> order;  // a tensor over another comes behind it in time
  for (size_t t = 0; t < p.tensors.size(); ++t) {
    if (p.tensors[t].storage != StorageKind::kArena) continue;
    if (life[t].first >= 0)
      order.push_back(static_cast<TensorId>(t));
    else  // no step touches it any more (those that did went away)
      p.tensors[t].storage = StorageKind::kExtern;
  }
  std::stable_sort(order.begin(), order.end(), [&](TensorId a, TensorId b) { return life[a].first < life[b].first; });
  int64_t blocks = 0;
  for (TensorId t : order) {
    const bool over = static_cast<size_t>(t) < s.over.size() && s.over[t] >= 0;
    p.tensors[t].arena_offset = over ? p.tensors[s.over[t]].arena_offset : sym::Expr(64 * blocks++);
  }
  plan::place_blocks(p);
  s.over.clear();
}

}  // namespace flashover::planner
