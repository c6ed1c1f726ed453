// Calls of compiled objects that run as the program is written. Every way into that goes through EagerLog::note.
//
//   In        why a call, or what is left of one after a graph break, runs in CPython
//   Out       counters (flashover.compile_stats), one warning per function and cause, records for explain()
//   Promises  nothing runs eager in silence; what the user asked for (stances, disable, export) is counted only
//   Declines  fullgraph=True: an exception instead of the warning
#pragma once
#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

namespace flashover::entry {

struct Settings;

enum class EagerCause : uint8_t {
  kDeclined,   // it cannot be captured, or its graph cannot be compiled
  kLimit,      // recompile_limit
  kState,      // something is active that has to see the program itself: a debugger, a mode, another tracer
  kTracer,     // the same of debuggers and the like; fullgraph does not forbid them
  kSaid,       // there was a warning of its own (the machine cannot compile, an operator is not as it says)
  kRaises,     // the program raised when it was captured, so it raises again
  kRequested,  // the user asked for it
  kTimed,      // a call that is timed beside compiled ones (race.h)
  kSlower,     // compiled calls took longer
};

struct EagerRecord {
  EagerCause cause;
  bool frame;  // the rest of a call, or a function that was called after a graph break; else a whole call
  std::string reason, where;
  int64_t count = 0;
};

class EagerLog {
 public:
  struct Event {
    EagerCause cause = EagerCause::kDeclined;
    bool frame = false;
    bool quiet = false;  // counted only
    const std::string& reason;
    const std::string& where = kHere;  // file:line; kHere: the line of the call
  };
  // False: an error is set.
  bool note(const Settings& settings, const Event& event);
  // Only the warning, once for each cause.
  bool warn(const Settings& settings, const Event& event, const std::string& where);
  int64_t calls() const { return calls_; }
  int64_t frames() const { return frames_; }
  PyObject* to_python() const;  // a list of dicts
  void forget_said() { said_ = 0; }
  static const std::string kHere;

 private:
  bool raise(const Settings& settings, const Event& event) const;
  int64_t calls_ = 0, frames_ = 0;
  uint32_t said_ = 0;  // causes that were warned of, by bit: those of calls, then those of frames
  std::vector<EagerRecord> records_;
};

// Raises flashover.exc.<name>(message, reason, where, stack); the stack's frames are lines.
void raise(const char* name, const std::string& message, const std::string& reason, const std::string& where,
           const std::string& stack = "");

// For the stance fail_on_recompile: sets flashover.exc.WouldRecompile. failed: the guard.
void raise_would_recompile(const Settings& settings, const std::string& failed, const char* forbidden_by);

// Why no call of this thread is to be captured or served now; null: it may be. `cause`: which kind of reason it is.
const char* reason_to_skip(PyCodeObject* code, EagerCause& cause);

// Whether tensors or modules are among these objects, or directly in what they hold.
bool deals_with_tensors(PyObject* const* slots, size_t count);

}  // namespace flashover::entry
