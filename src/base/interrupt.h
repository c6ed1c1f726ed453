// How long work learns that it shall stop, and how it lets the host program go on while it waits.
//
//   In        hooks of the host (src/python sets those of the Python interpreter); none: nothing ever interrupts
//   Out       `Interrupted`, thrown at the points where work can stop and leave nothing behind
//   Promises  a point costs a look at the clock; the host's lock is never taken while a mutex of ours is waited for
//   Sample    HostReleased host;  while (!done) { wait_a_little(); host.check(); }
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

namespace flashover {

// Not a std::exception: nothing that handles failures may take it for one. The host's own error is set when it flies.
struct Interrupted {};

struct HostHooks {
  void* (*release)() = nullptr;      // lets go of the host's lock where this thread holds it; the result is for acquire
  void (*acquire)(void*) = nullptr;  // takes it again
  // Runs the handlers of signals that came. True: one of them raised, and the host's error is set.
  bool (*interrupted)() = nullptr;
};
extern HostHooks host_hooks;

// Signals that came while they were held back (frame/signals.h), one bit each; 0: none.
extern std::atomic<uint64_t> held_signals;

// Work that nobody waits for, on a thread of its own. It stops when it is told to or its time is up, without an error of
// the host's, and at each point where it could stop it lets the host go on.
struct Unattended {
  std::atomic<bool> stopped{false};
  std::chrono::steady_clock::time_point deadline{};
  bool over() const { return stopped || std::chrono::steady_clock::now() > deadline; }
};
// What this thread does from now on; null: work that is waited for.
void work_unattended(const Unattended* work);

// A point where work can stop: throws Interrupted. Asks the host at most every 20 ms, at once when a signal is held.
void check_interrupt();

// The host goes on while this lives: for waiting only. No mutex may be held, since the program may fork meanwhile.
class HostReleased {
 public:
  HostReleased();
  ~HostReleased();
  HostReleased(const HostReleased&) = delete;
  HostReleased& operator=(const HostReleased&) = delete;
  void check();  // as check_interrupt; when it throws, the lock is held again

 private:
  void take_back();
  void* state_ = nullptr;
  bool released_ = false;
};

}  // namespace flashover
