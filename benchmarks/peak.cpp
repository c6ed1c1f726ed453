// Preloaded (LD_PRELOAD): bytes of the large blocks that this process holds, and the most it held since the last reset.
// Resident memory tells less: freed pages stay, and compilers leave their own behind.
#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

namespace {
constexpr size_t kLarge = 4096;  // tensors, not the objects of programs
std::atomic<long long> held, most;

void* count(void* p) {
  const size_t n = p ? malloc_usable_size(p) : 0;
  if (n < kLarge) return p;
  const long long now = held += static_cast<long long>(n);
  for (long long seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
  }
  return p;
}
void forget(void* p) {
  const size_t n = p ? malloc_usable_size(p) : 0;
  if (n >= kLarge) held -= static_cast<long long>(n);
}
}  // namespace

extern "C" {
void* malloc(size_t n) { return count(__libc_malloc(n)); }
void* calloc(size_t n, size_t size) { return count(__libc_calloc(n, size)); }
void* memalign(size_t alignment, size_t n) { return count(__libc_memalign(alignment, n)); }
void* aligned_alloc(size_t alignment, size_t n) { return count(__libc_memalign(alignment, n)); }
int posix_memalign(void** p, size_t alignment, size_t n) {
  *p = count(__libc_memalign(alignment, n));
  return *p ? 0 : ENOMEM;
}
void* realloc(void* p, size_t n) {
  forget(p);
  void* moved = __libc_realloc(p, n);
  count(moved || n == 0 ? moved : p);
  return moved;
}
void free(void* p) {
  forget(p);
  __libc_free(p);
}

long long peak_held() { return held; }
long long peak_most() { return most; }
void peak_reset() { most = held.load(); }
}
