// Captures swap tensors in place for a while, so there is one at a time in the whole process.
#pragma once
#include <cstdint>

namespace flashover::entry {

// Waits for the captures of other threads, and lets them have the GIL meanwhile.
class CaptureLock {
 public:
  enum class IfHeld : uint8_t { kWait, kLeave };
  explicit CaptureLock(IfHeld otherwise = IfHeld::kWait);
  ~CaptureLock();
  CaptureLock(const CaptureLock&) = delete;
  bool busy() const { return !locked_; }         // of kLeave: another thread has it
  bool interrupted() const { return !locked_; }  // a signal handler raised while this was waited for: the error is set

 private:
  bool locked_ = false;
};

bool compiling_in_this_thread();

}  // namespace flashover::entry
