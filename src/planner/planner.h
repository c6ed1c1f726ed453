// From a functional core graph to kernels and the plan that launches them.
//
//   In        graph::Graph in form kCore
//   Out       loop kernels (equal code once) and a plan whose launch steps name them by index; binaries are kernel/'s
//             work
//   Promises  every loops::Kernel verifies; the plan verifies; results and outputs have the graph's dtypes, sizes and
//             strides
//   Declines  Declined for a prim that loops cannot compute (complex numbers), and for kernels on two devices
//   Stages    expand, make_loop_nodes, fuse (loops/schedule): which values are computed by which loops, in which groups
//             build_plan: a step for each group, operator and copy, a tensor for each value
//             the rewrites of rewrites.h, in their order: writes, memory, equal kernels
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "loops/loops.h"
#include "loops/schedule/options.h"
#include "plan/plan.h"

namespace flashover::planner {

struct Options {
  loops::ScheduleOptions loops;
  bool share = true;   // kernels that differ only in sizes are one; on a GPU, in expressions of symbols
  bool exact = false;  // of the graph: functions have one form in all kernels
  // GPU: bytes beside the inputs that the plan should not need more of, eager's (0: unknown). Copies that are kept for
  // the next call are made in the call instead, as far as it takes.
  int64_t memory_limit = 0;
  // The same with what operators take for themselves while they run: convolutions that need more do their batch in
  // parts.
  int64_t working_limit = 0;
  // CPU: temporaries and results of so many bytes are allocated where they begin and freed where they end (0: none
  // are), smaller ones too where that makes much of a difference.
  int64_t apart = 0;
  bool late_outputs = false;   // GPU: results may be allocated when they are first written (no CUDA graph is recorded)
  bool own_operators = false;  // CPU: this machine has what the hand-written operators need
  Device device = {};          // of the plan: where its kernels run. Values on another device are for extern calls only
  bool want_text = true;       // fill Schedule::text
  // Chooses among find_products(): replaces steps of the plan, whose temporaries have no offsets yet, by launches of
  // kernels that are numbered after `kernels`. Empty: none.
  std::function<void(plan::Plan&, const std::vector<loops::Kernel>& kernels)> fuse_products = {};
};

struct Schedule {
  plan::Plan plan;                     // Step::kernel indexes `kernels`; Plan::kernels and binaries are kernel/'s work
  std::vector<loops::Kernel> kernels;  // distinct by identity()
  // Between reuse_in_place and assign_arena_offsets: by tensor the temporary whose block of the arena it takes over,
  // or -1.
  std::vector<plan::TensorId> over;
  std::string text;  // nodes and groups, for people

  bool on_gpu() const { return plan.device.type != DeviceType::kCPU; }
};

Schedule schedule(const graph::Graph& core, const Options& options = {});

// The plan, a line "over t5 t3" for each entry of `over`, and the kernels.
std::string print(const Schedule& s);
Schedule parse(std::string_view text);  // throws UserError
// "threads=8 processors=132 apart=4096": fields of Options by name, booleans without a value. For tests and tools.
Options parse_options(std::string_view words);  // throws UserError

}  // namespace flashover::planner
