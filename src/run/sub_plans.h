// A plan that runs as several sub-plans, one behind the other: CUDA graphs of what lies around steps that cannot be
// recorded. (Tests cut plans for the CPU too.)
//
//   In        a program; where to cut it, and which sub-plans are recorded
//   Out       run(): the calls of all sub-plans, what they pass on handed from one to the next
//   Promises  cut at most once at a time, and what calls read is never written again: other threads see all of the
//             sub-plans or none. Each has frozen tensors of its own
//   Declines  cut(): some tensor cannot be passed on (false), or a sub-plan cannot be loaded (what load raises): the
//             whole goes on as it is
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/split.h"
#include "run/program.h"
#include "run/run.h"

namespace flashover::run {

// Where a plan is cut: for each sub-plan the first step after it, and whether it is recorded.
struct Cuts {
  std::vector<size_t> ends;
  std::vector<bool> graphs;
};
// Cuts a plan into `count` sub-plans of about the same length.
Cuts even_cuts(const plan::Plan& plan, size_t count);
// apart: steps that are no part of a graph. Those between them are, where they are enough to be worth one. Nothing when
// none are.
std::optional<Cuts> cuts_around(const plan::Plan& plan, const std::map<size_t, std::string>& apart);

class SubPlans {
 public:
  struct Loaded {
    std::shared_ptr<Executable> executable;
    bool leaves_a_trace = false;  // once it ran, what came before cannot be undone
  };
  // depth: how often what is loaded was cut out of a larger plan.
  using Load = std::function<Loaded(plan::Plan, const LoadOptions&, std::shared_ptr<const Code>, int depth)>;

  SubPlans(const Program& p, int depth, Load load) : program_(p), depth_(depth), load_(std::move(load)) {}
  bool may_be_cut() const { return depth_ < kMaxDepth; }
  bool exist() const { return exist_.load(std::memory_order_acquire); }

  // addresses, pool_outputs: as in LoadOptions, of the whole; empty: the default.
  bool cut(const Cuts& cuts, const std::vector<InputAddress>& addresses, const std::vector<bool>& pool_outputs);
  void run(c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs) const;
  int64_t graph_replays() const;

 private:
  static constexpr int kMaxDepth = 6;
  struct SubPlan {
    Loaded loaded;
    std::vector<int32_t> inputs;  // as plan::PlanPartition
    std::vector<plan::PlanPartition::SubPlan::Target> outputs;
    std::vector<bool> last;  // by input: the last that needs what is passed on
  };
  const Program& program_;
  const int depth_;
  const Load load_;
  std::vector<SubPlan> sub_plans_;
  size_t passed_ = 0;
  std::atomic<bool> exist_{false};
};

}  // namespace flashover::run
