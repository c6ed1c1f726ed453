// Kernels that are launched one behind the other, again and again with other parameters, as one CUDA graph: launching
// that costs the CPU less than launching a single kernel does.
//
//   Promises  launch() is as if each kernel were launched with the parameters it was given last; false when that cannot
//             be done, and then nothing was launched
#pragma once
#include <vector>

#include "run/cuda/driver.h"

namespace flashover::run::cuda {

// Kernels in the order of launching. early: it waits itself for those in front of it (and they for theirs), so that it
// starts while the last of them ends: what a start costs, and what it reads of memory that nobody writes, is hidden.
struct ChainedKernel {
  KernelNodeParams params;
  bool early = false;
};

class KernelGraph {
 public:
  explicit KernelGraph(const std::vector<ChainedKernel>& kernels);
  ~KernelGraph();  // (one that runs goes when it has ended)
  KernelGraph(const KernelGraph&) = delete;
  bool usable() const { return exec_ != nullptr; }
  bool set(size_t kernel, const KernelNodeParams& params);
  bool launch(Stream stream) { return driver()->graph_launch(exec_, stream) == 0; }

 private:
  Graph graph_ = nullptr;
  GraphExec exec_ = nullptr;
  std::vector<Node> nodes_;
};

}  // namespace flashover::run::cuda
