// A kernel with an attention (loops/attention.h): a program computes some queries of one head, in a loop over blocks of
// keys. The axes of its tile are the queries (y) and the keys (x).
#pragma once
#include "kernel/triton/emission.h"

namespace flashover::kernel::triton {

Tile attention_tile(const loops::Kernel& k);
int attention_stages(const loops::Kernel& k);  // of loads in flight
void attention(Emission& e);                   // the whole body

}  // namespace flashover::kernel::triton
