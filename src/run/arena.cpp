// A few slots that hold one block each; blocks larger than any plan needs are freed when a plan goes.
#include "run/arena.h"

#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <mutex>
#include <set>

#include "base/pages.h"

namespace flashover::run {
namespace {

// The first bytes of an arena hold its size, so that a slot is one pointer and one atomic exchange.
constexpr size_t kHeader = 64;
constexpr size_t kSlots = 16;

struct alignas(64) Slot {
  std::atomic<char*> block{nullptr};
};
Slot slots[kSlots];

struct Needs {
  std::mutex mutex;
  std::multiset<size_t> sizes;
};
Needs& needs() {
  static Needs* n = new Needs;
  return *n;
}

Slot& own_slot() {
  static std::atomic<size_t> next{0};
  thread_local const size_t mine = next.fetch_add(1, std::memory_order_relaxed) % kSlots;
  return slots[mine];
}

size_t& size_of(char* block) { return *reinterpret_cast<size_t*>(block); }

void free_block(char* block) {
  if (block) c10::free_cpu(block);
}

}  // namespace

Arena take_arena(size_t size) {
  if (size == 0) return {};
  char* block = own_slot().block.exchange(nullptr, std::memory_order_acquire);
  if (block && size_of(block) < size) {
    free_block(block);
    block = nullptr;
  }
  if (!block) {
    const size_t whole = size + kHeader;
    block = static_cast<char*>(c10::alloc_cpu(whole));
    prefer_huge_pages(block, whole);
    size_of(block) = size;
  }
  return {block + kHeader, size_of(block)};
}

void give_arena(Arena arena) {
  if (!arena.data) return;
  char* block = arena.data - kHeader;
  free_block(own_slot().block.exchange(block, std::memory_order_acq_rel));
}

void announce_arena(size_t size) {
  std::lock_guard lock(needs().mutex);
  needs().sizes.insert(size);
}

void forget_arena(size_t size) {
  size_t largest = 0;
  {
    std::lock_guard lock(needs().mutex);
    auto& sizes = needs().sizes;
    if (auto it = sizes.find(size); it != sizes.end()) sizes.erase(it);
    if (!sizes.empty()) largest = *sizes.rbegin();
  }
  for (Slot& slot : slots) {
    char* block = slot.block.exchange(nullptr, std::memory_order_acquire);
    if (!block) continue;
    char* none = nullptr;
    if (size_of(block) > largest || !slot.block.compare_exchange_strong(none, block, std::memory_order_release))
      free_block(block);
  }
}

size_t kept_arena_bytes() {
  size_t sum = 0;
  for (Slot& slot : slots) {
    char* block = slot.block.exchange(nullptr, std::memory_order_acquire);
    if (!block) continue;
    sum += size_of(block);
    char* none = nullptr;
    if (!slot.block.compare_exchange_strong(none, block, std::memory_order_release)) free_block(block);
  }
  return sum;
}

}  // namespace flashover::run
