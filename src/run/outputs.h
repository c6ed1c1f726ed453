// A call's results: memory for them before the first step, their final form after the last.
//
//   In        a program; a call on the way
//   Out       tensors of their own, with eager's sizes, strides and aliasing
//   Promises  no result shares memory with what a later call writes; views of inputs and of other results are made at
//             the caller's level, so that view and grad-mode bookkeeping are eager's
//   Declines  nothing
#pragma once
#include <vector>

#include "run/walk.h"

namespace flashover::run {

// Makes the outputs that kernels write. outputs: all of the plan's, undefined so far.
inline void allocate_outputs(const Program& p, std::vector<at::Tensor>& outputs) {
  for (int32_t i : p.owned_outputs) outputs[i] = p.shapes[p.plan.outputs[i].tensor].empty();
}
// Result i from a tensor of the frame. adopt: the tensor itself, where its strides are right; else a copy.
void finish_output(Run& run, size_t i, bool adopt);
// Makes the outputs whose type is not their tensor's: the elements of the memory that the program sees.
void narrow_outputs(const Program& p, std::vector<at::Tensor>& outputs);
// Makes the outputs that are views of inputs or of other outputs.
void make_aliases(const Program& p, c10::TensorImpl* const* inputs, std::vector<at::Tensor>& outputs);

}  // namespace flashover::run
