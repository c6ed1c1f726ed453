// Work shared out among the OpenMP threads of the process: torch's own, so that torch.set_num_threads, OMP_NUM_THREADS
// and affinity hold for it.
//
//   In        a body over a range or tasks, and how much work that is
//   Out       everything done when the function returns
//   Promises  as many threads as pay off on this machine, which is measured when a number of threads is first used; one
//             thread inside of parallel regions and where there is no OpenMP runtime. Regions are started with all
//             threads, since libgomp ends those that a smaller team does without, and makes new ones for the next, which
//             takes a hundred times as long as to start a team
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>

#include "cpu_kernels/float_state.h"

namespace flashover::cpu {

int team_size();  // threads that would be used now

// What a thread of a team throws: the OpenMP runtime knows no exceptions, so it is kept until the team has ended.
class FirstFailure {
 public:
  void keep() noexcept {  // the exception that is being handled
    if (!taken_.exchange(true)) what_ = std::current_exception();
  }
  bool any() const { return taken_.load(std::memory_order_relaxed); }
  void throw_again() const {  // by the thread that started the team, after it
    if (what_) std::rethrow_exception(what_);
  }

 private:
  std::atomic<bool> taken_{false};
  std::exception_ptr what_;
};

// Calls body(job, begin, end) for parts of [0, n), which together are all of it. `work`: about how many picoseconds they
// take on one thread. The body must not throw. (Generated kernels get this function as an argument.)
using RangeBody = void (*)(void* job, int64_t begin, int64_t end);
void share(RangeBody body, void* job, int64_t n, int64_t work);

// The same for an f(begin, end) that may throw: what the first part threw that did is thrown.
template <typename F>
void share_parts(int64_t n, int64_t work, const F& f) {
  struct Job {
    const F& f;
    FirstFailure failure{};
  } job{f};
  share(
      [](void* p, int64_t begin, int64_t end) {
        Job& j = *static_cast<Job*>(p);
        try {
          j.f(begin, end);
        } catch (...) {
          j.failure.keep();
        }
      },
      &job, n, work);
  job.failure.throw_again();
}

// f(task) for every task, each by the thread that is free next. Throws what the first task threw that did; tasks that
// were not begun by then are left out.
void in_parallel(int64_t tasks, void (*f)(void* data, int64_t task), void* data);
template <typename F>
void in_parallel(int64_t tasks, const F& f) {
  in_parallel(
      tasks, [](void* data, int64_t task) { (*static_cast<const F*>(data))(task); }, const_cast<F*>(&f));
}

// Runs f on this thread while the others stand by: what f shares out starts in a fraction of a microsecond, where a
// region of its own takes several. Libraries and ATen see one thread in f. Throws what f throws.
void with_team(void (*f)(void* data), void* data);
template <typename F>
void with_team(const F& f) {
  with_team([](void* data) { (*static_cast<const F*>(data))(); }, const_cast<F*>(&f));
}

// Picoseconds that with_team would have saved in what this thread has shared out since the last call, less its own
// start.
int64_t saved_by_team();

// While it lives the team of this thread, and what it calls in parallel, counts numbers below 2^-126 as 0: with them
// the processor takes a hundred times as long.
class FlushedTeam {
 public:
  FlushedTeam();
  ~FlushedTeam();
  FlushedTeam(const FlushedTeam&) = delete;

 private:
  FloatState before_;
};

// Memory of this thread, aligned to 64 bytes, until its next call.
void* scratch(size_t bytes);

}  // namespace flashover::cpu
