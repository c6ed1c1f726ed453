// For one file of a test program: operator new, which a test can have fail.
#pragma once
#include <cstdlib>
#include <new>
#include <optional>

namespace flashover {

// Of this thread: how many allocations there is memory for. None: for all.
inline thread_local std::optional<int> memory_left;

// Does f() throw std::bad_alloc where there is memory for so many allocations?
template <typename F>
bool runs_out_of_memory(int allocations, F&& f) {
  memory_left = allocations;
  bool threw = false;
  try {
    f();
  } catch (const std::bad_alloc&) {
    threw = true;
  }
  memory_left.reset();
  return threw;
}

}  // namespace flashover

// (Not inline: GCC would see malloc and free as pairs of new and delete that do not match.)
[[gnu::noinline]] void* operator new(size_t n) {
  const bool there = !flashover::memory_left || --*flashover::memory_left >= 0;
  void* p = there ? std::malloc(n) : nullptr;
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
