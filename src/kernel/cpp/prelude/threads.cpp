// Outer points shared among threads by the caller's function (cpu::share, cpu_kernels/team.h); without one (a plain test
// process) they run alone.
#include "kernel/cpp/prelude/snippets.h"

namespace flashover::kernel::snippets {
namespace {

const Snippet kThreads[] = {
    {"Body Share", kAny, R"(
typedef void (*Body)(void* job, long begin, long end);
typedef void (*Share)(Body body, void* job, long n, long work);
)"},
    {"share_range", kAny, R"(
// Calls body(job, begin, end) for parts of [0, n). `work`: about how many picoseconds all of them take on one thread.
static void share_range(Share share, Body body, void* job, long n, long work) {
  if (share)
    share(body, job, n, work);
  else
    body(job, 0, n);
}
)"},
};

}  // namespace

Snippets threads() { return kThreads; }

}  // namespace flashover::kernel::snippets
