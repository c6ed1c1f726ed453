// From a functional core graph to kernels and the plan that launches them.
//
//   In        graph::Graph in form kCore
//   Out       loop kernels (equal code once) and a plan whose launch steps name them by index; binaries are kernel/'s
//             work
//   Promises  every loops::Kernel verifies; the plan verifies; results and outputs have the graph's dtypes, sizes and
//             strides
//   Declines  Declined for a prim that loops cannot compute (complex numbers)
//   Stages    expand: prims that are several loops (var) become simpler prims
//             items: which values are realised (memory, accumulator), which are computed in place; one Item a value
//             fuse: items into groups that share their outer loops
//             build: a group to a Kernel: stages, bodies, loop order, loop merging
//             plan: step order, memory, aliases
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "loops/loops.h"
#include "plan/plan.h"

namespace flashover::loops {

struct ScheduleOptions {
  int threads = 2;                // how many rows are enough
  int64_t split_numel = 1 << 16;  // a reduction longer than this with fewer rows than threads is split in two steps
  bool share = true;              // kernels that differ only in sizes are one
  bool exact = false;             // of the graph: functions have one form in all kernels
  // > 0: for a GPU with so many processors. Then rows are cut for blocks of threads instead of lanes and caches: long
  // reductions to few elements are split further, scratch is what fits in registers and is read where it was written,
  // `share` is off.
  int processors = 0;
  // GPU: bytes beside the inputs that the plan should not need more of, eager's (0: unknown). Copies that are kept for
  // the next call are made in the call instead, as far as it takes.
  int64_t memory_limit = 0;
  // The same with what operators take for themselves while they run: convolutions that need more do their batch in
  // parts.
  int64_t working_limit = 0;
  // CPU: temporaries and results of so many bytes are allocated where they begin and freed where they end (0: none
  // are), smaller ones too where that makes much of a difference.
  int64_t apart = 0;
  bool late_outputs = false;  // GPU: results may be allocated when they are first written (no CUDA graph is recorded)
  Device device = {};         // of the plan: where its kernels run. Values on another device are for extern calls only
  bool want_text = true;      // fill Schedule::text
  // Chooses among find_products(): replaces steps of the plan, whose temporaries have no place yet, by launches of
  // kernels with numbers behind those of `kernels`. Empty: none.
  std::function<void(plan::Plan&, const std::vector<Kernel>& kernels)> fuse_products = {};
};

struct Schedule {
  plan::Plan plan;              // Step::kernel indexes `kernels`; Plan::kernels and binaries are left to kernel/
  std::vector<Kernel> kernels;  // distinct by identity()
  std::string text;             // items and groups, for people
};

Schedule schedule(const graph::Graph& core, const ScheduleOptions& options = {});

}  // namespace flashover::loops
