// Largest blocks first, each at the lowest offset where nothing alive overlaps.
#include "plan/blocks.h"

#include <algorithm>
#include <numeric>

namespace flashover::plan {

int64_t assign_offsets(std::vector<Block>& blocks) {
  auto aligned = [](int64_t n) { return (n + 63) / 64 * 64; };
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  std::vector<size_t> placed;  // by offset
  int64_t total = 0;
  for (size_t i : order) {
    Block& b = blocks[i];
    int64_t at = 0;
    for (size_t j : placed) {
      const Block& other = blocks[j];
      if (other.last < b.first || b.last < other.first) continue;
      if (other.offset >= at + aligned(b.bytes)) break;
      at = std::max(at, other.offset + aligned(other.bytes));
    }
    b.offset = at;
    total = std::max(total, at + aligned(b.bytes));
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](size_t x, size_t y) { return blocks[x].offset < blocks[y].offset; }),
                  i);
  }
  return total;
}

}  // namespace flashover::plan
