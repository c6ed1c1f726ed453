// What a capture has open, or has noted, beside objects and facts. Each undoes itself where the capture ends.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "frame/internals.h"

namespace flashover::frame {

// The instruction that runs in a frame. `begin`: that of the KW_NAMES that belongs to it, else the same.
struct Ordinal {
  int64_t count, begin;
};
// The way to an instruction: the one that runs in each frame, root first. Empty: nowhere that a frame could be resumed.
using Path = std::vector<Ordinal>;

struct Locks {
  struct Held {
    Ref lock;
    Path path;  // where it was taken
  };
  std::vector<Held> held;  // taken by the trace for torch's own code, or made by it, and not released yet
  std::vector<Ref> made;   // by the trace
  void undo();
};

// Switches and levels of torch that the program set.
struct TorchModes {
  struct InferenceMode {
    Ref guard;
    bool on, entered = false;
  };
  bool switched = false;                       // the program set a switch of torch's
  Ref autocast_cache;                          // what torch.is_autocast_cache_enabled() says to the program
  std::vector<Ref> dual_levels;                // of torch.autograd.forward_ad, entered and not left yet
  std::vector<Path> saved_hooks;               // where saved-tensor hooks were pushed that are not popped yet
  std::vector<InferenceMode> inference_modes;  // made by the trace and not left yet, in the order they were entered
  void leave_inference_modes();
  void undo();
};

// record_functions of torch.profiler.
struct ProfilerRanges {
  std::vector<Ref> entered;  // of the trace
  std::vector<Ref> left;     // that were entered before the trace and are left in it
};

// Said by the program, at a line of its own or (globals: null) so many frames outside of the capture.
struct Warning {
  Ref message, category, file, module, globals;
  int line_or_level = 0;
  Ref function, args, kwargs;                     // instead of all that: a call to make (logged.cpp)
  std::vector<std::pair<Ref, int64_t>> versions;  // of the tensors among its arguments
  bool still_true() const;
};

struct Warnings {
  std::vector<Warning> said;
  bool filters_mutated = false;        // warnings._filters_mutated() was called
  Ref filters_before, printer_before;  // of module warnings
  void save();
  bool filters_of_before() const;  // nothing entered warnings.catch_warnings since the capture began
  bool recorded() const;           // and that one does not print
  bool printed() const;            // what is said goes where the module puts it by itself
};

struct CaptureContext {
  Locks locks;
  TorchModes torch;
  ProfilerRanges ranges;
  Warnings warnings;
  Path variable_path;            // where the first context variable was set
  std::vector<Ref> own_globals;  // dicts made by the trace that code runs in

  // Where to end the graph instead of at `path`: nothing that the program has to close again is open there.
  Path before_what_is_open(bool variables_changed, Path path) const;
  void undo();
};

}  // namespace flashover::frame
