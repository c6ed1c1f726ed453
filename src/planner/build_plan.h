// A step for each group of loops, each operator and each copy, in the order of the program; a tensor for each value.
//
//   In        the nodes of a graph in groups (loops/schedule/fuse.h)
//   Out       steps and tensors, equal kernels once. Temporaries have no offsets yet; new values of inputs are copied
//             there by steps labelled kWriteBack behind all others
//   Declines  kernels that work on two devices
#pragma once
#include "loops/schedule/fuse.h"
#include "planner/planner.h"

namespace flashover::planner {

constexpr const char* kWriteBack = "write back";
constexpr const char* kClone = "clone";  // of what an operator writes

// Sets LoopNode::stored as loops::build does.
Schedule build_plan(loops::LoopProgram& program, const loops::Fused& fused, const Options& options);

}  // namespace flashover::planner
