// Torch's advanced indexing, x[list]: where the dims of the index tensors stand in the result.
#pragma once
#include "ops/types.h"

namespace flashover::ops {

// The entries of the list that hold an index tensor. None: first is the length of the list.
struct IndexedDims {
  size_t first, last = 0;
  bool adjacent = true;  // no entry between them is without one
  // In place of the first of them, or in front when they are apart.
  size_t begin() const { return adjacent ? first : 0; }
};

template <typename Has>
IndexedDims indexed_dims(size_t entries, Has&& has) {
  IndexedDims d{.first = entries};
  for (size_t i = 0; i < entries; ++i) {
    if (!has(i)) continue;
    if (d.first == entries) d.first = i;
    d.adjacent = d.adjacent && (d.first == i || d.last + 1 == i);
    d.last = i;
  }
  return d;
}

inline IndexedDims indexed_dims(const RefList& list) {
  return indexed_dims(list.size(), [&](size_t i) { return list[i].id != kNoValue; });
}

}  // namespace flashover::ops
