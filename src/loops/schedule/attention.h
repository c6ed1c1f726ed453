// The kernel of a node op::flex_fused (ops/flex.cpp): its function becomes the stages of an attention (loops/attention.h).
#pragma once
#include "loops/schedule/build.h"

namespace flashover::loops {

// Params of the node's results come last: its own three, of which those that nothing uses are left out.
Built build_attention(const LoopProgram& program, const graph::Node& node);

}  // namespace flashover::loops
