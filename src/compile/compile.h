// The story: every stage and pass in order. Open pipeline.cpp first.
//
//   In        a traced graph, checked options, what is known of the machine
//   Out       a Plan with its kernel binaries, and a Report of what was done
//   Promises  the same graph, options and environment give the same plan; every representation verifies after every
//             pass when the option `verify` is on; a plan from the cache is one that this pipeline made for an equal
//             key
//   Declines  what a stage declines (a prim without loops, no compiler, aliased inputs that are written): Declined, run
//             eager
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/options.h"
#include "graph/partition/partition.h"
#include "kernel/triton/triton.h"
#include "plan/plan.h"
#include "planner/planner.h"
#include "target/providers.h"

namespace flashover::compile {

struct Options {
  std::map<std::string, std::string> values;  // validated names and types, see base/options.def; absent = default
  bool flag(const std::string& name) const { return bool_option(values, name); }
};

// All that the pipeline may know of the machine; everything here is part of the cache key.
struct CompileTarget {
  target::Providers providers;
  int threads = 1;
  std::optional<kernel::triton::Gpu> gpu;  // of the graph's CUDA device; absent: graphs on such a device decline
  std::string versions;                    // torch's and ours
  // Seconds of a run of each plan on this machine, infinite where it cannot be run. Empty: nothing is measured. (Not
  // part of the key: whether to measure is an option, and what was measured belongs to the machine.)
  std::function<std::vector<double>(std::span<const plan::Plan>)> measure = {};
};

class ChoicesFile;
// The option choices_file; null where it is not given.
ChoicesFile* choices_of(const Options& options, const CompileTarget& environment);

struct Report {  // for explain() and FLASHOVER_LOGS
  struct Stage {
    std::string name;
    double seconds = 0;
  };
  bool want_texts = false;  // set by the caller: fill the texts below
  std::vector<Stage> stages;
  int64_t kernels = 0, extern_calls = 0;
  int64_t kernels_reused = 0;  // of those in a newly built plan, from the cache
  int64_t arena_bytes = 0;
  bool cache_hit = false;
  bool rebuild = false;  // set by the caller: plans and binaries of the cache did not load, so they are not read
  // What the cache shall keep of this compilation. Done by the caller when the plan has been loaded: a binary that
  // cannot be loaded must not reach another process.
  std::vector<std::function<void()>> keep;
  int dump_number = -1;  // set by the caller, from next_dump_number(): of the files in FLASHOVER_DUMP; -1: another one
  std::string cache_note;  // why the cache was not used, if it was not
  bool training = false;
  int64_t saved_bytes = 0;       // training: kept from forward to backward, beside inputs and results
  int64_t backward_kernels = 0;  // of `kernels`
  std::vector<std::pair<std::string, std::string>> texts;           // stage name -> printed form, in order
  std::vector<std::pair<std::string, std::string>> kernel_sources;  // symbol -> source
};

// Numbers the compilations of this process.
int next_dump_number();

// Graph in form kTraced -> Plan, through the disk cache. Throws Declined / UserError / InternalError.
plan::Plan compile(graph::Graph traced, const Options& options, const CompileTarget& environment, Report& report);

// The front half: everything up to the kernels' loops. For tests and tools.
planner::Schedule lower(graph::Graph traced, const Options& options, const CompileTarget& environment, Report& report,
                        decltype(planner::Options::fuse_products) fuse_products = {});

// A joint graph -> two plans, and the signature of what passes between them.
struct Training {
  graph::PartitionSignature signature;
  plan::Plan forward, backward;
  std::string backward_graph;  // its text: what is computed when some tangents do not come follows from it
};
Training compile_training(graph::Graph traced, const graph::Joint& facts, const Options& options,
                          const CompileTarget& environment, Report& report);
// A part of such a backward graph.
plan::Plan compile_backward(graph::Graph core, const Options& options, const CompileTarget& environment,
                            Report& report);

// The caller has loaded what was compiled.
void loaded(Report& report, const Options& options);

}  // namespace flashover::compile
