// One call on the way, and the walk over a program's instructions that makes it.
//
//   In        a frame whose table has been patched for the call (frame.h); where the call's inputs and outputs lie
//   Out       every instruction done, in order: kernels launched, operators called, memory let go
//   Promises  allocates nothing but what the plan says, a batch's status codes, and operators' arguments. Where an
//             instruction raises, CallFrame::at says which; operators' errors name their line of the program
//   Declines  a kernel's index check that fails: c10::IndexError. Results that are not what the plan says: Mismatch
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>

#include <vector>

#include "run/cuda/driver.h"
#include "run/frame.h"
#include "run/program.h"
#include "run/step_observer.h"

namespace flashover::run {

namespace cuda {
class LaunchSequences;
}

// CUDA graphs hold what the device does. What operators do on the CPU alone is done before each replay, and the numbers
// that launches take along are read in its midst.
enum class WalkScope : uint8_t { kAll, kDevice, kHost };

struct Run {
  const Program& program;
  CallFrame& frame;
  c10::TensorImpl* const* inputs;
  std::vector<at::Tensor>* outputs;  // null while frozen steps run
  cuda::Stream stream = nullptr;
  std::vector<at::Tensor>* frozen = nullptr;    // being filled; null in ordinary calls
  std::vector<at::Tensor>* consumed = nullptr;  // the inputs, let go one by one
  StepObserver* observer = nullptr;             // set while a profiler or explain() looks at the steps
  cuda::LaunchSequences* sequences = nullptr;   // kernels in a row are launched as one graph
  std::vector<cuda::Node>* nodes = nullptr;     // while a graph is recorded: of each launch
  std::vector<bool>* stale = nullptr;           // before a replay: launches whose numbers changed
  WalkScope scope = WalkScope::kAll;
  const std::vector<bool>* host_steps = nullptr;  // unless kAll: steps that the CPU does alone
};

void walk(const std::vector<Instruction>& instructions, Run& run);

// The tensor as an operator sees it.
at::Tensor tensor_of(Run& run, plan::TensorId t);

// The numbers that a launch takes along, as they are now.
void take_values(int32_t launch, Run& run);
// The tensor that an operator which only allocates would return.
void make_memory(const Instruction& in, Run& run);
void release(const Instruction& in, Run& run);
// The inputs that nothing reads after that step.
inline void let_go(size_t step, Run& run) {
  if (run.consumed)
    for (int32_t i : run.program.last_reads[step]) (*run.consumed)[i].reset();
}

}  // namespace flashover::run
