// A fused group becomes a kernel.
#pragma once
#include <vector>

#include "loops/schedule/fuse.h"

namespace flashover::loops {

struct Built {
  Kernel kernel;
  std::vector<ValueId> params;  // whose memory each parameter is
  std::string operators;        // of the program, that are fused here: "gelu+native_layer_norm"
};
// May set LoopNode::stored of members whose memory the kernel itself needs between stages.
struct BuildOptions {
  bool gpu = false;            // scratch lives in registers: only what is read where it was written
  bool order_by_dims = false;  // ScheduleOptions::order_by_dims
};
Built build(LoopProgram& program, const Group& group, const BuildOptions& options = {});
// The longest row that a GPU program keeps in registers.
constexpr int64_t kRegisterRow = 8192;

// Joins neighbouring loops that run through memory as one, names variables canonically, orders parameters.
// registers: scratch is what a lane keeps, so the stages that share it merge the same loops or none.
void merge_loops(Kernel& k, bool registers);
void canonicalise(Kernel& k, std::vector<ValueId>& params);

}  // namespace flashover::loops
