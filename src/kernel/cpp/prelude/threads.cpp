// Outer points shared among the threads of the OpenMP runtime that torch has loaded; without one (a plain test process)
// they run alone.
#include "kernel/cpp/prelude/snippets.h"

namespace flashover::kernel::snippets {
namespace {

const Snippet kThreads[] = {
    {"GOMP_parallel omp_get_max_threads omp_get_thread_num omp_get_num_threads omp_in_parallel", kAny, R"(
extern "C" void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned) __attribute__((weak));
extern "C" int omp_get_max_threads() __attribute__((weak));
extern "C" int omp_get_thread_num() __attribute__((weak));
extern "C" int omp_get_num_threads() __attribute__((weak));
)"},
    {"run_parallel", kAny, R"(
// Calls body(job, begin, end) over [0, n) in equal chunks, on as many threads as there are chunks of `grain`. The team
// is always the whole one: libgomp ends the threads that a smaller team does without, and makes new ones for the next.
typedef void (*Body)(void* job, long begin, long end);
struct Team { Body body; void* job; long n; long grain; };
static void run_chunk(void* data) {
  Team* t = (Team*)data;
  long threads = omp_get_num_threads(), me = omp_get_thread_num();
  long blocks = (t->n + t->grain - 1) / t->grain;
  if (threads > blocks) threads = blocks;
  if (me >= threads) return;
  long begin = blocks * me / threads * t->grain, end = blocks * (me + 1) / threads * t->grain;
  if (end > t->n) end = t->n;
  if (begin < end) t->body(t->job, begin, end);
}
static void run_parallel(Body body, void* job, long n, long grain) {
  if (GOMP_parallel && n > grain) {
    long threads = omp_get_max_threads();
    if (threads > 1) {
      Team t{body, job, n, grain};
      GOMP_parallel(run_chunk, &t, (unsigned)threads, 0);
      return;
    }
  }
  body(job, 0, n);
}
)"},
};

}  // namespace

Snippets threads() { return kThreads; }

}  // namespace flashover::kernel::snippets
