// Every pass over graphs, in the order in which programs go through them: the one list. The pipelines (compile/), the
// golden tests, `disable_passes`, tests/test_passes.py and docs/developer/passes.md iterate it.
//
// A row that bears the name of a pass has its function, its file and its text test named after it. A pass that runs
// twice has two rows; the later one's name says where ("cse_core").
#pragma once
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "graph/graph.h"
#include "graph/joint.h"
#include "target/providers.h"

namespace flashover::graph {

// The ways through the list. Each takes the rows marked for it, from top to bottom.
enum class Pipeline : uint8_t {
  kProgram,      // a traced program, forward and backward in one if it trains, to core form
  kBackward,     // the backward half behind the partition
  kFewTangents,  // a backward half without the tangents that did not come, before kBackward
  kCustom,       // what a backend of the user's gets
  kSchedule,     // a core graph of one device, last before its loops
};
constexpr Pipeline kPipelines[] = {Pipeline::kProgram, Pipeline::kBackward, Pipeline::kFewTangents, Pipeline::kCustom,
                                   Pipeline::kSchedule};
const char* str(Pipeline p);

class Pipelines {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a row writes {kProgram, kCustom}
  constexpr Pipelines(std::initializer_list<Pipeline> list) {
    for (Pipeline p : list) bits_ |= bit(p);
  }
  constexpr bool contains(Pipeline p) const { return (bits_ & bit(p)) != 0; }

 private:
  static constexpr uint32_t bit(Pipeline p) { return uint32_t{1} << static_cast<uint32_t>(p); }
  uint32_t bits_ = 0;
};

struct PassContext {
  const target::Providers& providers;
  Device device = {};      // of the plan: a CUDA device, or the CPU
  Joint* joint = nullptr;  // of a training graph in kProgram and kCustom
};

struct Pass {
  const char* name;
  Graph (*run)(Graph, const PassContext&);
  Form input, output;  // what it takes and promises; passes of kFunctional graphs take kCore as well
  Pipelines pipelines;
  const char* after;  // the rows whose results it relies on, with blanks between; they stand above it
  const char* why;    // what it is for, and why it stands here
};
std::span<const Pass> passes();
const Pass* find_pass(std::string_view name);  // null: no such row
// One row alone, its promise verified. Throws UserError for a name that no row bears.
Graph run_pass(std::string_view name, Graph g, const PassContext& context);
// All rows of a pipeline, one after the other.
Graph run_pipeline(Pipeline p, Graph g, const PassContext& context);

}  // namespace flashover::graph
