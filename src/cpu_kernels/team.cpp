// Regions of the OpenMP runtime, teams that stand by inside of one, and the costs by which work is shared out.
#include "cpu_kernels/team.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>
#include <utility>
#include <vector>

// Of the runtime inside torch; weak: without one there is one thread.
extern "C" {
__attribute__((weak)) void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
__attribute__((weak)) int omp_get_max_threads(void);
__attribute__((weak)) int omp_get_num_threads(void);
__attribute__((weak)) int omp_get_thread_num(void);
__attribute__((weak)) int omp_in_parallel(void);
}

namespace flashover::cpu {
namespace {

// What each of `count` threads does.
using Part = void (*)(void* data, int64_t me, int64_t count);

// The threads of one region, which wait for parts. Thread 0 hands them out, and takes one itself.
class StandingTeam {
 public:
  explicit StandingTeam(int64_t size) : size_(size), done_(static_cast<size_t>(size)) {
    const int64_t all = standing_threads().fetch_add(size, std::memory_order_relaxed) + size;
    // About half a millisecond, as libgomp's threads wait for their next region; where several share a core, no longer
    // than it takes to look.
    spins_ = all > threads_that_may_spin() ? 50 : 10000;
  }
  ~StandingTeam() { standing_threads().fetch_sub(static_cast<int64_t>(done_.size()), std::memory_order_relaxed); }
  StandingTeam(const StandingTeam&) = delete;
  int64_t size() const { return size_; }
  void stands(int64_t size) { size_ = size; }  // so many threads were really started

  // By thread 0.
  void run(Part part, void* data, int64_t count) {
    part_ = part, data_ = data;
    const uint64_t round = ++round_;
    post(round << kCountBits | static_cast<uint64_t>(count));
    part(data, 0, count);
    for (int64_t i = 1; i < count; ++i) await(done_[static_cast<size_t>(i)].round, round);
  }
  void end() { post(kEnd); }

  // By the others, until the end. A thread reads part_ and data_ only if it is among those that thread 0 waits for.
  void serve(int64_t me) {
    for (uint64_t seen = 0;;) {
      const uint64_t word = next_word(seen);
      if (word == kEnd) return;
      seen = word;
      const auto count = static_cast<int64_t>(word & ((uint64_t{1} << kCountBits) - 1));
      if (me >= count) continue;
      part_(data_, me, count);
      done_[static_cast<size_t>(me)].round.store(word >> kCountBits, std::memory_order_release);
    }
  }

 private:
  static std::atomic<int64_t>& standing_threads() {  // of all teams
    static std::atomic<int64_t> count{0};
    return count;
  }
  static int64_t threads_that_may_spin() {  // asked of the system once
    static const int64_t count = [] {
      const char* policy = std::getenv("OMP_WAIT_POLICY");
      const bool passive = policy && (policy[0] == 'p' || policy[0] == 'P');
      return passive ? 0 : static_cast<int64_t>(std::thread::hardware_concurrency());
    }();
    return count;
  }
  static constexpr int kCountBits = 16;
  static constexpr uint64_t kEnd = ~uint64_t{0};
  struct alignas(64) Done {
    std::atomic<uint64_t> round{0};
  };

  void post(uint64_t word) {
    word_.store(word, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) word_.notify_all();
  }
  uint64_t next_word(uint64_t seen) {
    uint64_t word;
    for (int i = 0; i < spins_; ++i) {
      if ((word = word_.load(std::memory_order_acquire)) != seen) return word;
      pause_in_loop();
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while ((word = word_.load(std::memory_order_seq_cst)) == seen) word_.wait(seen);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    return word;
  }
  void await(const std::atomic<uint64_t>& done, uint64_t round) const {
    for (int i = 0; done.load(std::memory_order_acquire) != round; ++i)
      if (i < spins_)
        pause_in_loop();
      else
        std::this_thread::yield();
  }

  int64_t size_;
  int spins_;
  uint64_t round_ = 0;
  Part part_ = nullptr;
  void* data_ = nullptr;
  alignas(64) std::atomic<uint64_t> word_{0};  // round and number of threads
  alignas(64) std::atomic<int> sleepers_{0};
  std::vector<Done> done_;
};

thread_local StandingTeam* standing = nullptr;  // of thread 0, but for while it takes a part
thread_local int64_t saved = 0;                 // picoseconds

struct RegionPart {
  Part part;
  void* data;
  int64_t count;
};
void take_part(void* p) {
  const auto& r = *static_cast<const RegionPart*>(p);
  const int64_t me = omp_get_thread_num(), count = std::min<int64_t>(r.count, omp_get_num_threads());
  if (me < count) r.part(r.data, me, count);
}

// On that many threads, or on as many as there are; on this one alone if that is one. (Parts do not throw.)
void on_threads(Part part, void* data, int64_t count) {
  if (count < 2) return part(data, 0, 1);
  if (StandingTeam* const team = std::exchange(standing, nullptr)) {
    team->run(part, data, std::min(count, team->size()));
    standing = team;
    return;
  }
  RegionPart region{part, data, count};
  GOMP_parallel(take_part, &region, static_cast<unsigned>(team_size()), 0);
}

// Picoseconds that it takes to start a region of so many threads that do nothing, and to wait for them.
int64_t measure_start(int threads) {
  // Tests whose threads do not spin use several all the same.
  if (std::getenv("FLASHOVER_TEST_QUICK_REGIONS")) return 1'000'000;
  using Clock = std::chrono::steady_clock;
  int64_t least = INT64_MAX;
  for (int i = 0; i < 16; ++i) {
    const auto begin = Clock::now();
    GOMP_parallel([](void*) {}, nullptr, static_cast<unsigned>(threads), 0);
    least =
        std::min<int64_t>(least, std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
  }
  return std::clamp<int64_t>(least, 300, 50'000) * 1000;
}
int64_t start_of_region(int threads) {
  static std::array<std::atomic<int64_t>, 257> measured{};
  std::atomic<int64_t>& known = measured[static_cast<size_t>(std::min(threads, 256))];
  int64_t start = known.load(std::memory_order_relaxed);
  if (start == 0) known.store(start = measure_start(threads), std::memory_order_relaxed);
  return start;
}
constexpr int64_t start_of_round(int64_t threads) { return 300'000 + 30'000 * threads; }

struct Choice {
  int64_t threads;
  int64_t time;  // picoseconds
};
// Among `threads` threads that take `start` to begin: those that have at least half a microsecond of work each.
Choice choose_threads(int64_t threads, int64_t n, int64_t work, int64_t start) {
  constexpr int64_t kLeast = 500'000;
  const int64_t count = std::min({threads, n, work / kLeast});
  if (count < 2) return {1, work};
  // (What a kernel takes is known roughly only.)
  const int64_t time = work / count + start + start / 4;
  return time < work ? Choice{count, time} : Choice{1, work};
}

struct Range {
  RangeBody body;
  void* job;
  int64_t n;
};
void take_range(void* p, int64_t me, int64_t count) {
  const auto& r = *static_cast<const Range*>(p);
  const int64_t begin = r.n / count * me + std::min(me, r.n % count);
  const int64_t end = begin + r.n / count + (me < r.n % count);
  if (begin < end) r.body(r.job, begin, end);
}

struct Work {
  std::atomic<int64_t> next{0};
  int64_t tasks;
  void (*f)(void*, int64_t);
  void* data;
  FirstFailure failure{};
};

void take_tasks(void* p, int64_t, int64_t) noexcept {
  Work& w = *static_cast<Work*>(p);
  try {
    for (int64_t t; !w.failure.any() && (t = w.next.fetch_add(1, std::memory_order_relaxed)) < w.tasks;) w.f(w.data, t);
  } catch (...) {
    w.failure.keep();
  }
}

// What the thread had before, while it flushes.
struct Before {
  bool set = false;
  FloatState state = 0;
};
thread_local Before flushing;

void begin_flush(void*, int64_t, int64_t) {
  flushing = {true, float_state()};
  set_float_state(flushing.state | kFlush);
}
// A thread that was made meanwhile has the state of the thread that made it, which is as `before` but for the flushing.
void end_flush(void* before, int64_t, int64_t) {
  const FloatState others = *static_cast<FloatState*>(before);
  set_float_state(flushing.set ? flushing.state : (float_state() & ~kFlush) | (others & kFlush));
  flushing.set = false;
}

struct Buffer {
  void* data = nullptr;
  size_t bytes = 0;
  ~Buffer() { std::free(data); }
};

}  // namespace

int team_size() {
  if (standing) return static_cast<int>(standing->size());
  if (!GOMP_parallel || !omp_get_max_threads || (omp_in_parallel && omp_in_parallel())) return 1;
  return omp_get_max_threads();
}

void share(RangeBody body, void* job, int64_t n, int64_t work) {
  if (n <= 0) return;
  const int team = n > 1 ? team_size() : 1;
  Choice choice{1, work};
  if (team > 1) {
    const Choice in_round = choose_threads(team, n, work, start_of_round(team));
    choice = standing ? in_round : choose_threads(team, n, work, start_of_region(team));
    saved += choice.time - in_round.time;
  }
  Range range{body, job, n};
  on_threads(take_range, &range, choice.threads);
}

void in_parallel(int64_t tasks, void (*f)(void*, int64_t), void* data) {
  Work w{.tasks = tasks, .f = f, .data = data};
  const int team = tasks > 1 ? team_size() : 1;
  if (team > 1 && !standing) saved += start_of_region(team) - start_of_round(team);
  on_threads(take_tasks, &w, std::min<int64_t>(team, tasks));
  w.failure.throw_again();
}

void with_team(void (*f)(void*), void* data) {
  const int size = team_size();
  if (size < 2 || standing) return f(data);
  struct Call {
    void (*f)(void*);
    void* data;
    StandingTeam team;
    FirstFailure failure{};
  } call{f, data, StandingTeam(size)};
  GOMP_parallel(
      [](void* p) {
        Call& c = *static_cast<Call*>(p);
        if (const int me = omp_get_thread_num(); me > 0) return c.team.serve(me);
        c.team.stands(omp_get_num_threads());
        standing = &c.team;
        try {
          c.f(c.data);
        } catch (...) {
          c.failure.keep();
        }
        standing = nullptr;
        c.team.end();
      },
      &call, static_cast<unsigned>(size), 0);
  call.failure.throw_again();
}

int64_t saved_by_team() {
  const int team = team_size();
  return std::exchange(saved, 0) - (team > 1 ? start_of_region(team) : 0);
}

FlushedTeam::FlushedTeam() : before_(float_state()) { on_threads(begin_flush, nullptr, team_size()); }
FlushedTeam::~FlushedTeam() { on_threads(end_flush, &before_, team_size()); }

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
