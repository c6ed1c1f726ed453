// How the outer points of a kernel are numbered through, so that a body function can run any range of the numbers and
// threads are a matter of who calls it.
#pragma once
#include "kernel/cpp/facts.h"

namespace flashover::kernel::cpp {

struct Iteration {
  // Under kOuter a number stands for `block` points of the last outer loop, taken `unroll` vectors at a time.
  int unroll = 1;
  int64_t block = 1;
  sym::Expr blocks = 1;  // of the last outer loop
  sym::Expr count = 1;   // of all numbers
  int64_t grain = 1;     // numbers that are worth a thread
};
Iteration iteration_of(const loops::Kernel& k, const Facts& facts);

// The outer loops that are numbered one by one; the last one is not under kOuter.
size_t numbered_loops(const loops::Kernel& k, const Facts& facts);
// How many steps the numbering makes of such a loop.
sym::Expr steps_of(const loops::Kernel& k, const Facts& facts, size_t loop);
// Is it the loop that tiles are read along?
bool is_across(const loops::Kernel& k, const Facts& facts, size_t loop);

}  // namespace flashover::kernel::cpp
