// One call recorded as a CUDA graph, and its replays.
//
//   In        a program and its graph plan; the inputs of the call that is recorded, then those of each replay
//   Out       the results of each replay
//   Promises  nothing that was handed out is written again: kernels get the addresses of each call's inputs and
//             outputs, what operators read or write is copied, pool outputs (pool_outputs.h) keep the graph from
//             replaying. A recording belongs to one stream
//   Declines  record(): what a step raises, or the driver, passes through, and there is no recording
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <vector>

#include "run/cuda/call_memory.h"
#include "run/cuda/driver.h"
#include "run/cuda/graph_plan.h"
#include "run/cuda/pool_outputs.h"
#include "run/frame.h"
#include "run/frozen.h"

namespace flashover::run::cuda {

struct Recording {
  std::shared_ptr<void> graph;
  GraphExec exec = nullptr;
  Stream stream = nullptr;
  std::unique_ptr<CallFrame> frame;  // the parameters that the graph's kernels have now
  std::shared_ptr<CallMemory> arena, scratch;
  std::shared_ptr<const Frozen> frozen;
  std::vector<Node> nodes;          // by launch
  std::vector<at::Tensor> inputs;   // by input: a buffer that stands for it, or undefined
  std::vector<const void*> fixed;   // by input: where operators expect it, or null
  std::vector<at::Tensor> outputs;  // by output: the graph's own memory of it, or undefined
  std::vector<bool> stale;          // by launch: has other parameters than its node
  std::shared_ptr<std::atomic<int>> live_outputs = std::make_shared<std::atomic<int>>(0);
  std::unique_ptr<PoolReservation> reservation;
  bool is_free() const { return live_outputs->load(std::memory_order_acquire) == 0; }
  bool suits(c10::TensorImpl* const* given) const;  // what operators read is where they expect it
};

// addresses: by input, as they are by now. failed_at: the step, when one raised, else SIZE_MAX.
std::unique_ptr<Recording> record(const Program& p, const GraphPlan& g, const std::vector<InputAddress>& addresses,
                                  FrozenCache& frozen, c10::TensorImpl* const* inputs, Stream stream,
                                  size_t& failed_at);
void replay(const Program& p, const GraphPlan& g, Recording& r, c10::TensorImpl* const* inputs,
            std::vector<at::Tensor>& outputs);

}  // namespace flashover::run::cuda
