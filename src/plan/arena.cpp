// See arena.h.
#include "plan/arena.h"

#include <algorithm>

#include "plan/blocks.h"
#include "plan/lifetimes.h"

namespace flashover::plan {

void place_blocks(Plan& p) {
  const std::vector<Lifetime> life = lifetimes(p);
  std::vector<size_t> block_of(p.tensors.size());
  std::vector<Block> blocks;
  sym::Expr together = 0;
  bool known = true;
  for (size_t t = 0; t < p.tensors.size(); ++t) {
    if (p.tensors[t].storage != StorageKind::kArena) continue;
    block_of[t] = static_cast<size_t>(p.tensors[t].arena_offset.value() / 64);
    if (block_of[t] >= blocks.size()) blocks.resize(block_of[t] + 1, Block{.bytes = -1});
  }
  for (size_t t = 0; t < p.tensors.size(); ++t) {
    if (p.tensors[t].storage != StorageKind::kArena) continue;
    const sym::Expr bytes = plan::bytes(p.tensors[t].type);
    Block& b = blocks[block_of[t]];
    const bool first = b.bytes < 0;
    known &= bytes.is_const();
    if (first) together += sym::ceildiv(bytes, 64) * 64;
    b.bytes = std::max(b.bytes, bytes.as_const().value_or(0));
    b.first = first ? life[t].first : std::min(b.first, life[t].first);
    b.last = first ? life[t].last : std::max(b.last, life[t].last);
  }
  if (!known) {
    p.arena_bytes = together;
    return;
  }
  p.arena_bytes = assign_offsets(blocks);
  for (size_t t = 0; t < p.tensors.size(); ++t)
    if (p.tensors[t].storage == StorageKind::kArena) p.tensors[t].arena_offset = blocks[block_of[t]].offset;
}

}  // namespace flashover::plan
