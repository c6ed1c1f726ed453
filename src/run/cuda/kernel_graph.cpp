// Makes the graph of a chain of kernel nodes, and changes their parameters between launches.
#include "run/cuda/kernel_graph.h"

#include <atomic>
#include <utility>

namespace flashover::run::cuda {

namespace {
// Each keeps some 64 KiB of the device's memory.
constexpr int kMostAlive = 2048;
std::atomic<int> alive{0};

// From a kernel to the next one: from its end, or from when all of its blocks have said that the next may start.
bool add_edge(Graph graph, const Node& from, const Node& to, bool early) {
  constexpr unsigned char kProgrammatic = 1;  // CU_GRAPH_KERNEL_NODE_PORT_, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
  EdgeData edge;
  if (early) edge.from_port = edge.type = kProgrammatic;
  return driver()->add_dependencies(graph, &from, &to, &edge, 1) == 0;
}
}  // namespace

KernelGraph::KernelGraph(const std::vector<ChainedKernel>& kernels) {
  if (++alive > kMostAlive) return;
  if (driver()->graph_create(&graph_, 0) != 0) {
    graph_ = nullptr;
    return;
  }
  bool all = true;
  for (const ChainedKernel& k : kernels) {
    Node node = nullptr;
    all = all && driver()->add_kernel(&node, graph_, nullptr, 0, &k.params) == 0;
    if (!nodes_.empty()) all = all && add_edge(graph_, nodes_.back(), node, k.early);
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

std::unique_ptr<SequenceGraphs> SpareGraphs::take() {
  const std::lock_guard lock(mutex_);
  if (all_.empty()) return nullptr;
  std::unique_ptr<SequenceGraphs> graphs = std::move(all_.back());
  all_.pop_back();
  return graphs;
}

void SpareGraphs::put(std::unique_ptr<SequenceGraphs> graphs) {
  constexpr size_t kMost = 4;  // calls at the same time; each graph takes memory of the device
  const std::lock_guard lock(mutex_);
  if (all_.size() < kMost) all_.push_back(std::move(graphs));
}

void SpareGraphs::forget(const Program* gone) {
  const std::lock_guard lock(mutex_);
  for (const auto& graphs : all_)
    if (graphs->of == gone) graphs->of = nullptr;
}

}  // namespace flashover::run::cuda
