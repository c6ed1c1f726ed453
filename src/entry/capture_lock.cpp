// One mutex that survives a fork; waiting for it handles signals and hands out what captures of other threads need.
#include "entry/capture_lock.h"

#include <Python.h>
#include <pthread.h>

#include <chrono>
#include <mutex>
#include <new>

#include "compat/python_lock.h"
#include "frame/operands.h"
#include "frame/signals.h"

namespace flashover::entry {
namespace {

// Not held while waiting for the GIL.
std::timed_mutex& compile_mutex() {
  alignas(std::timed_mutex) static unsigned char memory[sizeof(std::timed_mutex)];
  static std::timed_mutex* m = [] {
    // A child forked while another thread compiles must not wait for that thread.
    pthread_atfork(nullptr, nullptr, [] { new (memory) std::timed_mutex; });
    return new (memory) std::timed_mutex;
  }();
  return *m;
}
thread_local bool compiling = false;

}  // namespace

CaptureLock::CaptureLock(IfHeld otherwise) {
  while (!(locked_ = compile_mutex().try_lock())) {
    if (otherwise == IfHeld::kLeave) return;
    const frame::AtRest rests;  // the capture that this waits for may want the arguments of this call
    PyThreadState* saved = PyEval_SaveThread();
    locked_ = compile_mutex().try_lock_for(std::chrono::milliseconds(20));
    compat::take_lock_again(saved);
    if (locked_) break;
    if (frame::run_signal_handlers()) return;
  }
  compiling = true;
}

CaptureLock::~CaptureLock() {
  if (!locked_) return;
  compiling = false;
  compile_mutex().unlock();
}

bool compiling_in_this_thread() { return compiling; }

}  // namespace flashover::entry
