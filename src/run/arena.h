// Temporary memory of a call. An arena goes back to a per-thread slot when the call ends, so that the next call of any
// plan on that thread finds warm pages; what is kept never exceeds the need of the plans that are loaded.
#pragma once
#include <cstddef>

namespace flashover::run {

struct Arena {
  char* data = nullptr;  // 64-byte aligned; null when size is 0
  size_t size = 0;
};
Arena take_arena(size_t size);  // at least `size` bytes; throws c10::Error when memory is short
void give_arena(Arena arena);

// A plan that needs `size` is loaded / gone. Forgetting the largest plan frees what is kept beyond the next largest's
// need.
void announce_arena(size_t size);
void forget_arena(size_t size);
size_t kept_arena_bytes();  // for tests

}  // namespace flashover::run
