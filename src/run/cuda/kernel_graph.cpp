#include "run/cuda/kernel_graph.h"

namespace flashover::run::cuda {

KernelGraph::KernelGraph(const std::vector<KernelNodeParams>& kernels) {
  Graph graph = nullptr;
  if (driver()->graph_create(&graph, 0) != 0) return;
  bool all = true;
  for (const KernelNodeParams& k : kernels) {
    Node node = nullptr;
    all = all && driver()->add_kernel(&node, graph, nodes_.empty() ? nullptr : &nodes_.back(), nodes_.empty() ? 0 : 1,
                                      &k) == 0;
    nodes_.push_back(node);
  }
  // (The nodes stay good as names of the executable's.)
  if (!all || driver()->instantiate(&exec_, graph, 0) != 0) exec_ = nullptr;
  if (!exec_) driver()->graph_destroy(graph);
}

bool KernelGraph::set(size_t kernel, const KernelNodeParams& params) {
  return driver()->exec_set_kernel(exec_, nodes_[kernel], &params) == 0;
}

}  // namespace flashover::run::cuda
