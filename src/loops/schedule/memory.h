// Places temporaries into one slab by live range.
#pragma once
#include <cstdint>
#include <vector>

namespace flashover::loops {

struct Lifetime {
  int64_t bytes = 0;
  int32_t first = 0, last = 0;  // steps, inclusive
  int64_t offset = 0;           // result, multiple of 64
};
// Largest first, each at the lowest free place. Returns the size of the slab.
int64_t place(std::vector<Lifetime>& blocks);

}  // namespace flashover::loops
