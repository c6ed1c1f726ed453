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
  int64_t grain = 1;     // linear indices that are worth a thread
  // Where that depends on the sizes of a call: the cost of one outer point, and how many of its units are worth a
  // thread. 0: it does not.
  sym::Expr cost = 0;
  int64_t worth = 0;
};
Iteration iteration_of(const loops::Kernel& k, const KernelFacts& facts);

// How many outer loops have a step of their own in the linear index: all but the last one under kOuter.
size_t linearized_loops(const loops::Kernel& k, const KernelFacts& facts);
// How many steps such a loop has.
sym::Expr steps_of(const loops::Kernel& k, const KernelFacts& facts, size_t loop);
// Whether it is the loop that tiles are read along.
bool is_across(const loops::Kernel& k, const KernelFacts& facts, size_t loop);

}  // namespace flashover::kernel::cpp
