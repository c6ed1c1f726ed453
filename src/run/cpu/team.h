// Threads and memory of the hand-written operators.
#pragma once
#include <cstddef>
#include <cstdint>

namespace flashover::run::cpu {

int team_size();  // threads that the OpenMP runtime would use now

// f(task) for every task, by the process's OpenMP threads; on this thread alone where there are none.
void in_parallel(int64_t tasks, void (*f)(void* data, int64_t task), void* data);
template <typename F>
void in_parallel(int64_t tasks, const F& f) {
  in_parallel(
      tasks, [](void* data, int64_t task) { (*static_cast<const F*>(data))(task); }, const_cast<F*>(&f));
}

// While it lives the team of this thread, and what it calls in parallel, counts numbers below 2^-126 as 0: with them
// the processor takes a hundred times as long.
class FlushedTeam {
 public:
  FlushedTeam();
  ~FlushedTeam();
  FlushedTeam(const FlushedTeam&) = delete;

 private:
  unsigned before_;
};

// Memory of this thread, aligned to 64 bytes, until its next call.
void* scratch(size_t bytes);

}  // namespace flashover::run::cpu
