// Puts blocks of memory that live at different times into one arena.
#pragma once
#include <cstdint>
#include <vector>

namespace flashover::plan {

struct Block {
  int64_t bytes = 0;
  int32_t first = 0, last = 0;  // steps, inclusive
  int64_t offset = 0;           // result, multiple of 64
};
// Largest first, each at the lowest free offset. Returns the size of the arena.
int64_t assign_offsets(std::vector<Block>& blocks);

}  // namespace flashover::plan
