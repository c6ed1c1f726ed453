// Code of the program that runs beside a trace: nothing of it is recorded.
#pragma once

namespace flashover::trace {

class Recorder;

// While it lives, the trace of this thread rests: inputs count as the tensors that they stand for, what is made is made
// at once, and an operator on a tensor that the trace made raises.
class Aside {
 public:
  Aside();
  ~Aside();
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

 private:
  Recorder* resting_;
};

}  // namespace flashover::trace
