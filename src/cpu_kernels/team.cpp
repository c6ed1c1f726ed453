// Hands tasks out to the OpenMP threads of the process, and keeps a buffer for each of them.
#include "cpu_kernels/team.h"

#include <xmmintrin.h>

#include <atomic>
#include <cstdlib>
#include <new>

// Of the runtime inside torch; weak: without one there is one thread.
extern "C" {
__attribute__((weak)) void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
__attribute__((weak)) int omp_get_max_threads(void);
__attribute__((weak)) int omp_in_parallel(void);
}

namespace flashover::cpu {
namespace {

struct Work {
  std::atomic<int64_t> next{0};
  int64_t tasks;
  void (*f)(void*, int64_t);
  void* data;
  FirstFailure failure{};
};

void take_tasks(void* p) noexcept {
  Work& w = *static_cast<Work*>(p);
  try {
    for (int64_t t; !w.failure.any() && (t = w.next.fetch_add(1, std::memory_order_relaxed)) < w.tasks;) w.f(w.data, t);
  } catch (...) {
    w.failure.keep();
  }
}

constexpr unsigned kFlush = 0x8040;  // results and operands

// What the thread had before, while it flushes.
struct Before {
  bool set = false;
  unsigned state = 0;
};
thread_local Before flushing;

void begin_flush(void*) {
  flushing = {true, _mm_getcsr()};
  _mm_setcsr(flushing.state | kFlush);
}
// A thread that was made meanwhile has the state of the thread that made it, which is as `before` but for the flushing.
void end_flush(void* before) {
  _mm_setcsr(flushing.set ? flushing.state : (_mm_getcsr() & ~kFlush) | (*static_cast<unsigned*>(before) & kFlush));
  flushing.set = false;
}
void on_every_thread(void (*f)(void*), void* data) {
  const int team = team_size();
  if (team < 2)
    f(data);
  else
    GOMP_parallel(f, data, static_cast<unsigned>(team), 0);
}

struct Buffer {
  void* data = nullptr;
  size_t bytes = 0;
  ~Buffer() { std::free(data); }
};

}  // namespace

int team_size() {
  if (!GOMP_parallel || !omp_get_max_threads || (omp_in_parallel && omp_in_parallel())) return 1;
  return omp_get_max_threads();
}

// The whole team, also where there are fewer tasks: libgomp ends the threads that a smaller team does without, and makes
// new ones for the next, which takes a hundred times as long as to start a team.
void in_parallel(int64_t tasks, void (*f)(void*, int64_t), void* data) {
  Work w{.tasks = tasks, .f = f, .data = data};
  const int team = team_size();
  if (tasks < 2 || team < 2)
    take_tasks(&w);
  else
    GOMP_parallel(take_tasks, &w, static_cast<unsigned>(team), 0);
  w.failure.throw_again();
}

FlushedTeam::FlushedTeam() : before_(_mm_getcsr()) { on_every_thread(begin_flush, nullptr); }
FlushedTeam::~FlushedTeam() { on_every_thread(end_flush, &before_); }

void* scratch(size_t bytes) {
  thread_local Buffer buffer;
  if (buffer.bytes < bytes) {
    std::free(buffer.data);
    buffer.bytes = (bytes + 4095) / 4096 * 4096;
    buffer.data = std::aligned_alloc(64, buffer.bytes);
    if (!buffer.data) {
      buffer.bytes = 0;
      throw std::bad_alloc();
    }
  }
  return buffer.data;
}

}  // namespace flashover::cpu
