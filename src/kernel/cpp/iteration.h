// The outer loops of a kernel as one range of linear indices. A body function runs any subrange, so that threads are a
// matter of the caller.
#pragma once
#include "kernel/cpp/facts.h"

namespace flashover::kernel::cpp {

struct Iteration {
  // Under kOuter a linear index stands for `block` points of the last outer loop, taken `unroll` vectors at a time.
  int unroll = 1;
  int64_t block = 1;
  sym::Expr blocks = 1;  // of the last outer loop
  sym::Expr count = 1;   // of all linear indices
  sym::Expr cost = 1;    // of one outer point, which may depend on the sizes of a call
  int64_t unit = 1;      // picoseconds that a unit of cost takes in one linear index
};
Iteration iteration_of(const loops::Kernel& k, const KernelFacts& facts);

// How many outer loops have a step of their own in the linear index: all but the last one under kOuter.
size_t linearized_loops(const loops::Kernel& k, const KernelFacts& facts);
// How many steps such a loop has.
sym::Expr steps_of(const loops::Kernel& k, const KernelFacts& facts, size_t loop);
// Whether it is the loop that tiles are read along.
bool is_across(const loops::Kernel& k, const KernelFacts& facts, size_t loop);

}  // namespace flashover::kernel::cpp
