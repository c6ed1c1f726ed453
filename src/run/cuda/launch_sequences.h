// Kernels in a row, launched as one CUDA graph (kernel_graph.h): what lies between operators, launches and the memory
// that they need. Nothing is freed before the kernels are enqueued, and so nothing is made behind what is freed: it
// would lie beside it.
//
//   In        a program for a CUDA device; frames that calls borrow
//   Out       find: ranges of instructions, none in two; run: all of a range done
//   Promises  as if the kernels were launched one by one; a frame has graphs, whose nodes hold what was launched last,
//             so that only what changed is set anew. They are its own from the third call on. Before, a plan over
//             symbols, which has a program and frames for each size, hands the same graphs from call to call
//   Declines  run: the driver does not take the graph: false, no kernel was launched, and no call tries again
#pragma once
#include <atomic>
#include <vector>

#include "run/cuda/driver.h"
#include "run/program.h"
#include "run/walk.h"

namespace flashover::run::cuda {

std::vector<LaunchSequence> find_launch_sequences(const Program& p);

// A launch as graphs' nodes take it, with the parameters of a frame.
KernelNodeParams node_params(const Launch& l, CallFrame& frame);

class LaunchSequences {
 public:
  explicit LaunchSequences(const Program& p) : program_(p), usable_(!p.sequences.empty()) {}
  ~LaunchSequences();
  LaunchSequences(const LaunchSequences&) = delete;
  bool usable() const { return usable_.load(std::memory_order_relaxed); }
  // Whether graphs pay off from a frame's first call on.
  bool shared() const { return program_.spare_graphs != nullptr; }
  // At the end of a call. first: one of the frame's first ones.
  void end(CallFrame& frame, bool first) const;
  bool run(size_t number, Run& run);

 private:
  bool give_up();
  void prepare(CallFrame& frame) const;
  std::vector<Function> functions_of(const LaunchSequence& s) const;
  bool set_changed(const LaunchSequence& s, KernelGraph& graph, bool fresh, bool all, CallFrame& frame) const;

  const Program& program_;
  std::atomic<bool> usable_;  // cleared by a call of any thread
};

}  // namespace flashover::run::cuda
