// The CUDA graphs of a plan: which recording serves a call, when another one is worth its memory, when to stop.
//
//   In        a program, its frozen part; the calls, one by one
//   Out       run(): the call made by one replay, or not at all
//   Promises  one call at a time records or replays; the others are made the ordinary way meanwhile. A plan has several
//             recordings when calls come while pool outputs of the first one are alive (two forwards, then two
//             backwards), or when operators read the pool outputs of several recordings of another plan
//   Declines  run(): no recording suits and none may be made now (false). Plans whose graphs are of no use have none
//             from then on, and say why once; steps that cannot be recorded cut the plan into sub-plans (sub_plans.h)
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "run/cuda/graph_plan.h"
#include "run/cuda/recording.h"
#include "run/sub_plans.h"

namespace flashover::run::cuda {

class GraphCache {
 public:
  GraphCache(const Program& p, FrozenCache& frozen, SubPlans& sub_plans, const LoadOptions& options);

  bool on() const { return on_.load(std::memory_order_relaxed); }
  // A call was made the ordinary way, on this thread.
  void note_warm() { warm_.store(std::this_thread::get_id(), std::memory_order_relaxed); }
  bool run(c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs, Stream stream);
  int64_t replays() const { return replays_.load(std::memory_order_relaxed); }

 private:
  static constexpr int kMaxRecordings = 16, kWorthIt = 50, kBusyCalls = 3, kChangesAllowed = 2, kNeverInPool = 8;
  static constexpr int64_t kMostReserved = 3;  // one part in so many of the device's memory, but for a single recording
  static constexpr size_t kMaxAlive = 3;

  Recording* find(c10::TensorImpl* const* inputs, Stream stream);
  bool may_record(c10::TensorImpl* const* inputs, Stream stream);
  bool pool_inputs_are_there(c10::TensorImpl* const* inputs);
  void note_moves(c10::TensorImpl* const* inputs);
  Recording* record(c10::TensorImpl* const* inputs, Stream stream);
  void record_sub_plans();
  void give_up(const std::string& why);
  void turn_off(const std::string& why);

  const Program& program_;
  FrozenCache& frozen_;
  SubPlans& sub_plans_;
  const GraphPlan graph_plan_;
  std::atomic<bool> on_{true};
  std::atomic<std::thread::id> warm_;  // the last thread that made a call without a graph
  std::atomic<int64_t> replays_{0};

  std::mutex mutex_;                     // of what follows
  std::vector<InputAddress> addresses_;  // by input, as they turned out to be
  std::vector<int> moved_;               // by input: how often it did not stay
  std::map<size_t, std::string> apart_;  // steps that are no part of a graph, and why
  std::vector<std::unique_ptr<Recording>> recordings_;
  bool no_more_ = false;
  int recorded_ = 0, busy_ = 0;
  int64_t served_ = 0;  // replays since the last recording
};

}  // namespace flashover::run::cuda
