// Where temporaries lie in the arena: blocks of memory, numbered when the plan is made, placed when their sizes are
// constants. A plan with size symbols keeps the numbers of its blocks; run/ places them for the sizes of a call.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/blocks.h"
#include "plan/plan.h"

namespace flashover::plan {

// The numbered blocks, with the steps that they live in and no sizes yet; by tensor, the block that it is in (-1: none).
struct ArenaBlocks {
  std::vector<Block> blocks;
  std::vector<int32_t> of;
};
ArenaBlocks arena_blocks(const Plan& p);

// Arena tensors say the number of their block times 64 as their offset. Places the blocks: those that live at different
// times share memory. Where some size holds a symbol the numbers stay, and arena_bytes is what all blocks take together.
void place_blocks(Plan& p);

}  // namespace flashover::plan
