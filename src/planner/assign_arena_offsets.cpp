// Temporaries that share memory (Schedule::over) are one block.
#include <algorithm>

#include "planner/blocks.h"
#include "planner/lifetimes.h"
#include "planner/rewrites.h"

namespace flashover::planner {

using plan::StorageKind;
using plan::TensorId;

void assign_arena_offsets(Schedule& s, const Options& /*o*/) {
  plan::Plan& p = s.plan;
  const std::vector<Lifetime> life = lifetimes(p);
  std::vector<TensorId> order;  // a tensor over another comes behind it in time
  for (size_t t = 0; t < p.tensors.size(); ++t) {
    if (p.tensors[t].storage != StorageKind::kArena) continue;
    if (life[t].first >= 0)
      order.push_back(static_cast<TensorId>(t));
    else  // no step touches it any more (those that did went away)
      p.tensors[t].storage = StorageKind::kExtern;
  }
  std::stable_sort(order.begin(), order.end(), [&](TensorId a, TensorId b) { return life[a].first < life[b].first; });
  std::vector<Block> blocks;
  std::vector<size_t> block_of(p.tensors.size());
  for (TensorId t : order) {
    if (static_cast<size_t>(t) < s.over.size() && s.over[t] >= 0) {
      block_of[t] = block_of[s.over[t]];
      blocks[block_of[t]].last = std::max(blocks[block_of[t]].last, life[t].last);
    } else {
      block_of[t] = blocks.size();
      blocks.push_back({plan::bytes(p.tensors[t].type).value(), life[t].first, life[t].last});
    }
  }
  p.arena_bytes = assign_offsets(blocks);
  for (TensorId t : order) p.tensors[t].arena_offset = blocks[block_of[t]].offset;
  s.over.clear();
}

}  // namespace flashover::planner
