// Switching a thread to a stack of its own for one call, by ucontext. The thread remains the same, so that Python's and
// torch's thread-local state is what f expects; another thread could not capture for this one.
#include "base/stack.h"

#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <exception>
#include <utility>

namespace flashover {
namespace {

constexpr size_t kStack = size_t{16} << 20;  // of address space; pages are taken as they are touched

// The lowest address of the stack in use; 0: not asked yet.
thread_local uintptr_t lowest = 0;

uintptr_t lowest_of_thread() {
  pthread_attr_t attributes;
  if (::pthread_getattr_np(::pthread_self(), &attributes) != 0) return 0;
  void* address = nullptr;
  size_t size = 0, guard = 0;
  ::pthread_attr_getstack(&attributes, &address, &size);
  ::pthread_attr_getguardsize(&attributes, &guard);
  ::pthread_attr_destroy(&attributes);
  return reinterpret_cast<uintptr_t>(address) + guard;
}

uintptr_t here() { return reinterpret_cast<uintptr_t>(__builtin_frame_address(0)); }

// A mapping with a page below that nothing may touch.
class Stack {
 public:
  Stack() : guard_(static_cast<size_t>(::sysconf(_SC_PAGESIZE))) {
    void* p = ::mmap(nullptr, guard_ + kStack, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (p == MAP_FAILED) return;
    base_ = static_cast<char*>(p);
    ::mprotect(base_, guard_, PROT_NONE);
  }
  ~Stack() {
    if (base_) ::munmap(base_, guard_ + kStack);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  char* start() const { return base_ ? base_ + guard_ : nullptr; }

 private:
  size_t guard_;
  char* base_ = nullptr;
};

struct Call {
  const std::function<void()>* f;
  std::exception_ptr failure;
};
thread_local Call* current = nullptr;

// No exception may leave the bottom frame of a context.
void enter() {
  Call* const call = current;
  try {
    (*call->f)();
  } catch (...) {
    call->failure = std::current_exception();
  }
}

}  // namespace

size_t stack_left() {
  if (lowest == 0) lowest = lowest_of_thread();
  return here() > lowest ? here() - lowest : 0;
}

void with_stack(size_t needed, const std::function<void()>& f) {
  if (stack_left() >= needed) return f();
  const Stack stack;
  ucontext_t outside, inside;
  if (!stack.start() || ::getcontext(&inside) != 0) return f();
  inside.uc_stack.ss_sp = stack.start();
  inside.uc_stack.ss_size = kStack;
  inside.uc_link = &outside;
  ::makecontext(&inside, &enter, 0);
  Call call{&f, nullptr};
  Call* const before = std::exchange(current, &call);
  const uintptr_t end = std::exchange(lowest, reinterpret_cast<uintptr_t>(stack.start()));
  ::swapcontext(&outside, &inside);
  lowest = end;
  current = before;
  if (call.failure) std::rethrow_exception(call.failure);
}

}  // namespace flashover
