// Fewer page faults and TLB misses in large blocks of memory.
#pragma once
#include <cstddef>

namespace flashover {

// For memory that was just allocated and is about to be written as a whole. Small blocks are left as they are.
void prefer_huge_pages(void* block, size_t bytes);

}  // namespace flashover
