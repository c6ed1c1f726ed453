// Makes the graph of a chain of kernel nodes, and changes their parameters between launches.
#include "run/cuda/kernel_graph.h"

#include <atomic>

namespace flashover::run::cuda {

namespace {
// Each keeps some 64 KiB of the device's memory.
constexpr int kMostAlive = 2048;
std::atomic<int> alive{0};
}  // namespace

KernelGraph::KernelGraph(const std::vector<KernelNodeParams>& kernels) {
  if (++alive > kMostAlive) return;
  if (driver()->graph_create(&graph_, 0) != 0) {
    graph_ = nullptr;
    return;
  }
  bool all = true;
  for (const KernelNodeParams& k : kernels) {
    Node node = nullptr;
    all = all && driver()->add_kernel(&node, graph_, nodes_.empty() ? nullptr : &nodes_.back(), nodes_.empty() ? 0 : 1,
                                      &k) == 0;
    nodes_.push_back(node);
  }
  if (!all || driver()->instantiate(&exec_, graph_, 0) != 0) exec_ = nullptr;
}

KernelGraph::~KernelGraph() {
  --alive;
  const Relaxed relaxed;
  if (exec_) driver()->exec_destroy(exec_);
  if (graph_) driver()->graph_destroy(graph_);  // (its nodes are the names of the executable's)
}

bool KernelGraph::set(size_t kernel, const KernelNodeParams& params) {
  return driver()->exec_set_kernel(exec_, nodes_[kernel], &params) == 0;
}

}  // namespace flashover::run::cuda
