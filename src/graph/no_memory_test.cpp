// Copies of what a graph is made of where there is no memory for them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "graph/graph.h"

namespace {
thread_local bool no_memory = false;
}

// (Not inline: GCC would see malloc and free as pairs of new and delete that do not match.)
[[gnu::noinline]] void* operator new(size_t n) {
  void* p = no_memory ? nullptr : std::malloc(n);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace flashover {
namespace {

TEST(NoMemory, ACopyOfAnArgumentThrowsAndDestroysNothing) {
  const Arg sizes = Sizes{2, 3}, name = std::string(100, 'x'), flags = std::vector<bool>(100), refs = RefList{{1}, {2}};
  for (const Arg* a : {&sizes, &name, &flags, &refs}) {
    no_memory = true;
    bool threw = false;
    try {
      const Arg copy = *a;
    } catch (const std::bad_alloc&) {
      threw = true;
    }
    no_memory = false;
    EXPECT_TRUE(threw);
  }
}

}  // namespace
}  // namespace flashover
