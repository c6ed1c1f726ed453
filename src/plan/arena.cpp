// See arena.h.
#include "plan/arena.h"

#include <algorithm>
#include <limits>

#include "plan/lifetimes.h"

namespace flashover::plan {

ArenaBlocks arena_blocks(const Plan& p) {
  const std::vector<Lifetime> life = lifetimes(p);
  ArenaBlocks out{{}, std::vector<int32_t>(p.tensors.size(), -1)};
  for (size_t t = 0; t < p.tensors.size(); ++t) {
    if (p.tensors[t].storage != StorageKind::kArena) continue;
    const auto block = static_cast<size_t>(p.tensors[t].arena_offset.value() / 64);
    if (block >= out.blocks.size())
      out.blocks.resize(block + 1, Block{.first = std::numeric_limits<int32_t>::max(), .last = -1});
    out.of[t] = static_cast<int32_t>(block);
    Block& b = out.blocks[block];
    b.first = std::min(b.first, life[t].first);
    b.last = std::max(b.last, life[t].last);
  }
  return out;
}

void place_blocks(Plan& p) {
  auto [blocks, of] = arena_blocks(p);
  std::vector<bool> counted(blocks.size());
  sym::Expr together = 0;
  bool known = true;
  for (size_t t = 0; t < p.tensors.size(); ++t) {
    if (of[t] < 0) continue;
    const auto block = static_cast<size_t>(of[t]);
    const sym::Expr bytes = plan::bytes(p.tensors[t].type);
    known &= bytes.is_const();
    if (!counted[block]) together += sym::ceildiv(bytes, 64) * 64;
    counted[block] = true;
    blocks[block].bytes = std::max(blocks[block].bytes, bytes.as_const().value_or(0));
  }
  if (!known) {
    p.arena_bytes = together;
    return;
  }
  p.arena_bytes = assign_offsets(blocks);
  for (size_t t = 0; t < p.tensors.size(); ++t)
    if (of[t] >= 0) p.tensors[t].arena_offset = blocks[static_cast<size_t>(of[t])].offset;
}

}  // namespace flashover::plan
