// The tensors of a program's frozen part, made when they are first needed and again when a parameter changed.
//
//   In        a program; its FrozenCache, which knows whether they are up to date (frozen.h); a call's inputs and frame
//   Out       frame.frozen holds the set for these inputs, and the frame's table points to its tensors
//   Promises  the usual call costs FrozenCache's check. What is made does not depend on the mode of the call that
//             happens to come first. CUDA: work of `stream` comes after what computed them
//   Declines  what a frozen step raises passes through; nothing is kept then
#pragma once
#include "run/cuda/driver.h"
#include "run/frame.h"
#include "run/frozen.h"
#include "run/program.h"

namespace flashover::run {

void sync_frozen(const Program& p, FrozenCache& part, CallFrame& frame, c10::TensorImpl* const* inputs,
                 cuda::Stream stream);

}  // namespace flashover::run
