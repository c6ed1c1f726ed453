// Where real tensors are exchanged for trace tensors under the program's objects, and other threads go on.
#pragma once
#include <cstddef>

typedef struct _object PyObject;

namespace flashover::trace {

struct Exchange {
  double patience = 0.05;   // seconds that are left to wait in this session
  bool interfered = false;  // an input was declined because of another thread: there may be none another time
};
Exchange& exchange();  // of this thread; again for each session

// A thread that is in the midst of a method of these tensors must not see them exchanged: waits, without the GIL, for
// at most `seconds`, of which it takes what it waited, until there is none; false if there still is. Set by the stage
// that knows threads; null: nobody waits.
using WaitForOthers = bool (*)(PyObject* const* tensors, size_t count, double& seconds) noexcept;
extern WaitForOthers wait_for_others;

}  // namespace flashover::trace
