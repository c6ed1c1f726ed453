// Threads and memory of the hand-written operators.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>

namespace flashover::cpu {

int team_size();  // threads that the OpenMP runtime would use now

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

// f(task) for every task, by the process's OpenMP threads; on this thread alone where there are none. Throws what the
// first task threw that did; tasks that were not begun by then are left out.
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

}  // namespace flashover::cpu
