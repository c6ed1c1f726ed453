// Captures swap tensors in place for a while, so there is one at a time in the whole process.
#pragma once

namespace flashover::entry {

// Waits for the captures of other threads, and lets them have the GIL meanwhile.
class CaptureLock {
 public:
  CaptureLock();
  ~CaptureLock();
  CaptureLock(const CaptureLock&) = delete;
  bool interrupted() const { return !locked_; }  // a signal handler raised while this was waited for: the error is set

 private:
  bool locked_ = false;
};

bool compiling_in_this_thread();

}  // namespace flashover::entry
