// Runs a Plan.
//
//   In        a Plan, input tensors
//   Out       output tensors; mutated inputs written
//   Promises  no Python, no allocation per step beyond the arena, outputs and what extern operators return; follows
//             torch.set_num_threads; outputs own their memory and have eager's strides; safe from several threads at
//             once; frozen tensors are as if computed anew on every call, also when a parameter was written behind
//             autograd's back (writes.h)
//   CUDA      runs on the plan's device, whichever is current, on torch's current stream there; temporaries and outputs
//             come from torch's caching allocator
//   Declines  load(): a plan for another machine, a binary that does not load (Declined, the caller rebuilds or runs
//             eager)
//
// A call borrows a CallFrame (pointer table, wrappers of arena memory for extern operators) that a previous call left
// behind, or makes one; then it is one walk over a flat list of instructions.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/check.h"
#include "ops/version_steps.h"
#include "plan/plan.h"

namespace at {
class Tensor;
}
namespace c10 {
struct TensorImpl;
}

namespace flashover::run {

struct Counters {
  int64_t calls = 0;
  int64_t frozen_runs = 0;     // how often frozen_steps ran
  int64_t graph_replays = 0;   // calls that were one launch of a CUDA graph
  int64_t content_checks = 0;  // calls that had to look at parameter bytes, because an alias may write them untracked
};

// An operator returned something else than the plan was made for (a custom operator whose meta function is wrong; a
// result that depends on data). The plan cannot serve such calls.
struct Mismatch : InternalError {
  explicit Mismatch(const std::string& what) : InternalError(what) {}
  size_t step = 0;
  bool clean = false;  // everything that the caller can see is as before the call, which may be repeated in eager
};

// After an exception came out of a run on this thread: everything is as before the call, which may be repeated in
// eager.
bool& failure_was_undone();

class Executable {
 public:
  virtual ~Executable() = default;
  // inputs: borrowed, in Plan::inputs order, types already guarded. Outputs replace the contents of `outputs`. Needs no
  // GIL, but a caller that releases it must own the inputs meanwhile. Exceptions of extern operators pass through with
  // the step's label as context; a kernel's failed index check is a c10::IndexError; an operator whose result is not
  // what the plan says is a Mismatch. The first call can always be undone (failure_was_undone()), later ones if no
  // input was written yet, if little was, or if an index was out of range from the start.
  virtual void run(c10::TensorImpl* const* inputs, size_t count, std::vector<at::Tensor>& outputs) = 0;
  void run(const at::Tensor* inputs, size_t count, std::vector<at::Tensor>& outputs) {
    run(reinterpret_cast<c10::TensorImpl* const*>(inputs), count,
        outputs);  // at::Tensor is one pointer; asserted in the .cpp
  }
  // As run, and each input is let go once its last reader has run: for inputs that nothing else needs any more.
  virtual void run_consuming(std::vector<at::Tensor>&& inputs, std::vector<at::Tensor>& outputs) = 0;
  virtual const plan::Plan& plan() const = 0;
  virtual Counters counters() const = 0;
  // From now on (until it is off) calls also take the time of each step: times(), in seconds, the least seen so far,
  // negative where there is none. CUDA graphs are not used meanwhile.
  virtual void measure(bool on) = 0;
  virtual std::vector<double> times() const = 0;
  // Of the call that times() is of, by entry of plan::size_sources(plan()); empty: the plan has no symbols, or no call
  // came.
  virtual std::vector<int64_t> sizes() const { return {}; }
  // Tensors that the frozen part makes of these inputs, by TensorId; those that calls do not read are undefined. Only
  // the inputs that it reads are looked at.
  virtual std::vector<at::Tensor> frozen_tensors(c10::TensorImpl* const* inputs) = 0;
  // Calls with these inputs, while nobody writes them, take these tensors (by TensorId) in place of computing them;
  // undefined ones are computed. False: not for this plan.
  virtual bool supply_frozen(c10::TensorImpl* const* inputs, std::vector<at::Tensor> tensors) = 0;
  // Worth releasing the GIL for: it calls operators or moves enough bytes to take more than some microseconds.
  virtual bool heavy() const = 0;
};

// Whether an input that operators read has the same address in each call.
enum class InputAddress : uint8_t {
  kVaries,  // a CUDA graph has a buffer of its own for it
  kStatic,  // the same one, with exceptions
  // As kStatic, in the memory of another plan's graph (LoadOptions::pool_outputs); else the call is made without one.
  kGraphPool,
};

struct LoadOptions {
  // CUDA: from the second call on a stream on, calls replay a recorded CUDA graph. Kernels get the addresses of each
  // call's inputs and outputs, so nothing that was handed out is written again; what operators read or write is copied.
  bool graphs = false;
  // CUDA: kernels in a row are launched as one graph (cuda/kernel_graph.h).
  bool kernel_graphs = true;
  // An operator whose result has another dtype than the plan says is no Mismatch: the result is converted.
  bool converts = false;
  std::vector<InputAddress> addresses;  // by input; empty: parameters, buffers and constants stay
  // Tests: from the second call on the plan runs as so many sub-plans, as where CUDA graphs are made of parts.
  int64_t sub_plans = 1;
  // By output: seen by the caller's own plans alone, on the stream of the call. A CUDA graph may hand it out in
  // the memory of its own pool: that is not written again until the tensor is gone, calls in between do without this
  // graph.
  std::vector<bool> pool_outputs;
  // How version counters move in eager. Empty: by one for each input that is written.
  VersionSteps version_steps;
  // A part of a plan, which tells what was written.
  bool sub_plan = false;
  // Whether anything but calls of plans gets hold of the inputs that the frozen part reads. While that is false, nothing
  // else can write them, and operators are not watched for it (untracked_writers.h). Null: it does.
  std::shared_ptr<const std::atomic<bool>> inputs_seen;
};
std::shared_ptr<Executable> load(plan::Plan plan, const LoadOptions& options = {});

int64_t graph_replays();  // of all plans; for tests

}  // namespace flashover::run
