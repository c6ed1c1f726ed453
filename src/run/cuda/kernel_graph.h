// Kernels that are launched one behind the other, again and again with other parameters, as one CUDA graph: launching
// that costs the CPU less than launching a single kernel does.
//
//   Promises  launch() is as if each kernel were launched with the parameters it was given last; false when that cannot
//             be done, and then nothing was launched
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "run/cuda/driver.h"

namespace flashover::run {
struct Program;
}

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

// By launch sequence: its graph; and what the graphs' nodes have: the pointers and numbers of a program.
struct SequenceGraphs {
  const Program* of = nullptr;
  std::vector<std::unique_ptr<KernelGraph>> graphs;
  std::vector<std::vector<Function>> functions;  // by graph
  std::vector<void*> table;
  std::vector<uint64_t> values;
};

// Graphs of a plan that no call uses at the moment.
class SpareGraphs {
 public:
  std::unique_ptr<SequenceGraphs> take();  // null: there are none
  void put(std::unique_ptr<SequenceGraphs> graphs);
  void forget(const Program* gone);  // another program may lie there one day

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<SequenceGraphs>> all_;
};

}  // namespace flashover::run::cuda
