// Compiling beside the program (the option compile="background"): calls run eager until the code is there.
//
//   In        work that compiles a captured graph
//   Out       one thread of the process that does it, piece by piece in the order it came
//   Promises  the work has the GIL and the capture lock, as any compilation, and lets the program have the GIL between
//             its steps and while compilers run; it stops when its time is up, when it is cancelled and when the
//             process ends; a child that is forked meanwhile knows that its parent's work is not its own
#pragma once
#include <functional>
#include <memory>

#include "base/interrupt.h"

namespace flashover::entry {

struct Settings;
bool compiles_in_background(const Settings& settings);

struct BackgroundJob {
  Unattended stop;
  std::function<void()> work, dropped;  // one of them is called, with the GIL
  double seconds = 0;                   // that the work may take
  int process = 0;
  bool lost() const;  // it belongs to the process that this one was forked from
};

void compile_later(const std::shared_ptr<BackgroundJob>& job);
// False: the time ran out before all was compiled. GIL held, and let go of meanwhile; signals interrupt it (an error is
// set). seconds < 0: as long as it takes.
bool wait_for_background(double seconds);
int64_t background_jobs();  // that wait or run
// What waits is dropped, what runs is told to stop. last: no more work is taken, and the thread ends.
void cancel_background(bool last);

}  // namespace flashover::entry
