// What listens to the frames of a program: debuggers, coverage, profilers.
#pragma once

typedef struct _object PyObject;
struct PyCodeObject;

namespace flashover::frame {

// Why every line of the program must run in CPython now: sys.settrace, or a tool of sys.monitoring that listens to all
// code or to `code` (which may be null). Null: nothing like that. Profilers (sys.setprofile) see calls only, and what
// is compiled is one call.
const char* active_tracer(PyCodeObject* code);

// sys.setprofile is on for this thread.
bool profiled();

// A profiler of this thread is not told of what runs meanwhile.
class WithoutProfiler {
 public:
  WithoutProfiler();
  ~WithoutProfiler();
  WithoutProfiler(const WithoutProfiler&) = delete;

 private:
  bool active_;
};

}  // namespace flashover::frame
