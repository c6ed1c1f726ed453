// Going on after a graph break.
//
// The frames that a break left behind are made real again, outermost first, by writing locals, stack and next
// instruction into live interpreter frames (no bytecode is generated). The instruction that could not be captured runs
// for real, as CPython would run it, and so do control flow and arithmetic of plain numbers after it; then whoever
// implements Continuations is asked to take the frame on. What nobody takes runs in CPython.
//
// While an instruction runs for real, and in code that CPython takes to its end, the functions that are called are new
// chances: each is taken on as a frame of its own (TakeCallees).
//
//   In        FrameStates, root first; Continuations
//   Out       the result of the root frame's call, or a Python error
//   Promises  the program sees the frames it would have: tracebacks, handlers, finally blocks, locals, iterators
#pragma once
#include <vector>

#include "frame/frame.h"

typedef struct _object PyObject;

namespace flashover::frame {

class Continuations {
 public:
  enum class Outcome {
    kNotTaken,  // CPython runs the rest
    kReturned,  // *result
    kRaised,    // an error is set: the frame's handlers decide
    kBroke,     // `frames`: the first is this very frame further on
  };
  virtual ~Continuations() = default;
  // May a call of this function be taken on? (Not: its code turned out to have nothing to compile.)
  virtual bool accepts(PyObject* function) = 0;
  // The slots: as CaptureRequest wants them. Never throws.
  // CPython runs the rest of a frame, and nobody was asked. False: an error is set.
  virtual bool gives_up(const CaptureRequest& request, PyObject* code, const char* reason) = 0;
  virtual Outcome resume(const CaptureRequest& request, PyObject* code, PyObject** result,
                         std::vector<FrameState>& frames) = 0;
};

PyObject* resume(std::vector<FrameState> frames, Continuations& continuations);

// Python functions that this thread calls from now on, also those that C code calls, are taken on by `continuations` at
// their first instruction; null: by nobody. Takes effect until the end of the scope.
class TakeCallees {
 public:
  explicit TakeCallees(Continuations* continuations);
  ~TakeCallees();
  TakeCallees(const TakeCallees&) = delete;

 private:
  Continuations* outer_;
  bool hooked_;
};
// The next call of `function` runs in CPython, though what it calls may be taken on.
void leave_alone(PyObject* function);

// While it lives, modules below `root` (borrowed; may be null) are named by their paths from it in the rest of a call.
class NamesModules {
 public:
  explicit NamesModules(PyObject* root);
  ~NamesModules();
  NamesModules(const NamesModules&) = delete;

 private:
  PyObject* outer_;
};

bool is_module(PyObject* o);  // a torch.nn.Module

}  // namespace flashover::frame
