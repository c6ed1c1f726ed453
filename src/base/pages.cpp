// Advice to the kernel, which may know better.
#include "base/pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace flashover {

void prefer_huge_pages(void* block, size_t bytes) {
  constexpr size_t kHuge = size_t{4} << 20;
  if (bytes < kHuge) return;
  // The block need not start at a page: the kernel takes the inner part.
  const auto first = (reinterpret_cast<uintptr_t>(block) + 4095) & ~uintptr_t{4095};
  const auto last = (reinterpret_cast<uintptr_t>(block) + bytes) & ~uintptr_t{4095};
  ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

void bring_in(const void* block, size_t bytes) {
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, which older headers do not know
  constexpr size_t kWorthACall = 64 << 10;
  if (bytes < kWorthACall) return;
  // Both ends lie in pages that are mapped.
  const auto first = reinterpret_cast<uintptr_t>(block) & ~uintptr_t{4095};
  const auto last = (reinterpret_cast<uintptr_t>(block) + bytes + 4095) & ~uintptr_t{4095};
  ::madvise(reinterpret_cast<void*>(first), last - first, kPopulateRead);
}

}  // namespace flashover
