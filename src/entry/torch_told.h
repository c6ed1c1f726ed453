// What torch tells of its compilations is told of ours, once its own compiler is loaded: torch._dynamo.utils.counters
// counts them, and callbacks of torch._dynamo.on_compile_start and on_compile_end run. GIL held.
#pragma once
#include <string>

typedef struct _object PyObject;

namespace flashover::entry {

// While it lives a call is compiled.
class ToldCompilation {
 public:
  ToldCompilation();
  ~ToldCompilation();
  ToldCompilation(const ToldCompilation&) = delete;
  ToldCompilation& operator=(const ToldCompilation&) = delete;
  bool raised() const { return raised_; }  // a callback did: an error is set

 private:
  PyObject* ending_ = nullptr;  // owned: runs the callbacks of the end
  bool raised_ = false;
};

void tell_graph(size_t calls);
void tell_break(const std::string& reason);
void tell_frame(bool compiled);

}  // namespace flashover::entry
