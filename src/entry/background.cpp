// The thread, and the queue before it.
#include "entry/background.h"

#include <Python.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "compat/python_lock.h"
#include "entry/capture_lock.h"
#include "entry/entry.h"

namespace flashover::entry {
namespace {

using Steady = std::chrono::steady_clock;

class HoldsGil {
 public:
  HoldsGil() : state_(PyGILState_Ensure()) {}
  ~HoldsGil() { PyGILState_Release(state_); }
  HoldsGil(const HoldsGil&) = delete;

 private:
  const PyGILState_STATE state_;
};

constexpr int kNice = 10;

struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<BackgroundJob>> jobs;
  std::shared_ptr<BackgroundJob> running;
  std::thread thread;
  bool ends = false;
  int process = 0;

  void loop();
  void run(BackgroundJob& job);
};

// Never destroyed: its thread may outlive static objects. A forked child has one of its own.
Queue& queue() {
  static Queue* q = nullptr;  // GIL held
  if (!q || q->process != ::getpid()) {
    q = new Queue;
    q->process = ::getpid();
  }
  return *q;
}

void Queue::run(BackgroundJob& job) {
  const HoldsGil gil;
  const CaptureLock lock;
  if (job.stop.stopped) return job.dropped();
  job.stop.deadline =
      Steady::now() + std::chrono::duration_cast<Steady::duration>(std::chrono::duration<double>(job.seconds));
  work_unattended(&job.stop);
  try {
    job.work();
  } catch (const std::exception& e) {  // its calls stay eager
    PySys_WriteStderr("flashover: a compilation in the background ended: %.500s\n", e.what());
    job.dropped();
  }
  work_unattended(nullptr);
  if (PyErr_Occurred()) PyErr_WriteUnraisable(nullptr);
  job.work = job.dropped = nullptr;  // what they hold goes while the GIL is held
}

void Queue::loop() {
  // The compilers that it starts are as patient; the program goes first.
  static_cast<void>(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice));
  std::unique_lock held(mutex);
  while (true) {
    changed.wait(held, [this] { return ends || !jobs.empty(); });
    if (jobs.empty()) return;
    running = std::move(jobs.front());
    jobs.pop_front();
    held.unlock();
    run(*running);
    held.lock();
    running.reset();
    changed.notify_all();
  }
}

}  // namespace

bool compiles_in_background(const Settings& settings) {
  return option(settings.options.values, "compile") == "background" && settings.backend == "flashover" &&
         !settings.custom;
}

bool BackgroundJob::lost() const { return process != ::getpid(); }

void compile_later(const std::shared_ptr<BackgroundJob>& job) {
  Queue& q = queue();
  job->process = q.process;
  const std::lock_guard held(q.mutex);
  if (q.ends) return job->dropped();
  if (!q.thread.joinable())
    q.thread = std::thread([&q] {
      try {
        q.loop();
      } catch (const std::exception&) {  // (run() has said what a job threw)
        static_cast<void>(std::fputs("flashover: nothing is compiled in the background any more\n", stderr));
      }
    });
  q.jobs.push_back(job);
  q.changed.notify_all();
}

int64_t background_jobs() {
  Queue& q = queue();
  const std::lock_guard held(q.mutex);
  return static_cast<int64_t>(q.jobs.size()) + (q.running ? 1 : 0);
}

bool wait_for_background(double seconds) {
  Queue& q = queue();
  const auto start = Steady::now();
  while (true) {
    bool done = false;
    PyThreadState* saved = PyEval_SaveThread();
    {
      std::unique_lock held(q.mutex);
      done = q.changed.wait_for(held, std::chrono::milliseconds(20), [&q] { return q.jobs.empty() && !q.running; });
    }
    compat::take_lock_again(saved);
    if (done) return true;
    if (PyErr_CheckSignals() < 0) return false;
    if (seconds >= 0 && Steady::now() - start > std::chrono::duration<double>(seconds)) return false;
  }
}

void cancel_background(bool last) {
  Queue& q = queue();
  std::deque<std::shared_ptr<BackgroundJob>> waiting;
  {
    const std::lock_guard held(q.mutex);
    waiting = std::exchange(q.jobs, {});
    if (q.running) q.running->stop.stopped = true;
    q.ends = q.ends || last;
    q.changed.notify_all();
  }
  for (const auto& job : waiting) job->dropped();
  if (!last || !q.thread.joinable()) return;
  PyThreadState* saved = PyEval_SaveThread();
  q.thread.join();
  compat::take_lock_again(saved);
}

}  // namespace flashover::entry
