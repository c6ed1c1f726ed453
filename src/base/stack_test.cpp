// Deep recursion on a thread with a small stack, and on one whose stack is deep enough.
#include "base/stack.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <climits>
#include <stdexcept>

namespace flashover {
namespace {

// Takes about 1 KB a level, and cannot be turned into a loop.
int descend(int levels) {
  volatile char room[1000];
  room[0] = static_cast<char>(levels);
  return levels == 0 ? 0 : descend(levels - 1) + 1 + 0 * room[0];
}

void* on_small_stack(void* ran) {
  thread_local int own = 7;
  size_t inside = 0;
  int depth = 0;
  bool same_thread = false;
  const int* const address = &own;
  with_stack(1 << 20, [&] {
    inside = stack_left();
    depth = descend(4000);
    same_thread = address == &own;
    with_stack(1 << 20, [&] { depth += descend(10); });  // stays where it is
  });
  bool caught = false;
  try {
    with_stack(1 << 20, [] { throw std::runtime_error("through"); });
  } catch (const std::runtime_error&) {
    caught = true;
  }
  *static_cast<bool*>(ran) =
      inside > (8u << 20) && depth == 4010 && same_thread && caught && stack_left() < size_t{PTHREAD_STACK_MIN} * 16;
  return nullptr;
}

TEST(Stack, ASmallThreadGetsADeepOne) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, std::max<size_t>(PTHREAD_STACK_MIN, 64 << 10));
  pthread_t thread;
  bool ran = false;
  ASSERT_EQ(pthread_create(&thread, &attributes, on_small_stack, &ran), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  EXPECT_TRUE(ran);
}

TEST(Stack, ADeepOneIsUsedAsItIs) {
  const size_t left = stack_left();
  size_t inside = 0;
  with_stack(1 << 16, [&] { inside = stack_left(); });
  EXPECT_LE(inside, left);
  EXPECT_GT(inside + (64 << 10), left);
}

}  // namespace
}  // namespace flashover
