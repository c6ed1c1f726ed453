// The program's signal handlers and compilation. A handler that ran in the middle of a trace would be traced with it,
// and what it wrote would be taken back; an exception of its would be taken for the program's own. So signals are held
// while a call is compiled, and their handlers run at points where nothing is half made.
//
//   Promises  a handler runs as it would in eager code, once for a signal that came once, and its exception leaves the
//             call; a signal that comes a second time while it is held goes to Python at once, whatever is going on (a
//             program that waits for a lock in the middle of a trace can be interrupted)
#pragma once
#include <cstdint>

namespace flashover::frame {

// Holds the signals with Python handlers while it lives. Only the main thread's do anything. Handlers that wait run when
// the outermost one begins; what they raise leaves the call at the next run_signal_handlers(), or behind the hold.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

 private:
  bool outermost_ = false;
};

// Code of the program's own runs meanwhile: signals are as usual. Only on the main thread does it do anything: another
// thread's code must not let signals into what the main thread traces.
class SignalsPass {
 public:
  SignalsPass();
  ~SignalsPass();
  SignalsPass(const SignalsPass&) = delete;
  SignalsPass& operator=(const SignalsPass&) = delete;
  bool came() const;  // a signal, since this was made: an exception may be its handler's

 private:
  bool main_, was_ = false;
  uint64_t before_ = 0;
};

bool on_main_thread();

// Runs the handlers of signals that came. True: one of them raised, and the error is set. GIL held.
bool run_signal_handlers();

// A capture that gives way to signals does so at the next instruction; its caller runs the handlers and captures again.
bool signal_waits();

}  // namespace flashover::frame
