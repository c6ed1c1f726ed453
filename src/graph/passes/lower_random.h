// Random operators on CUDA tensors as prims: what they draw can be computed wherever it is used, and again in the
// backward, so dropout is part of the kernels around it and no mask is kept.
//
// Eager's kernels give each thread of a grid its own sequence of torch's generator (curand's Philox); which thread
// draws which element follows from the number of elements, the grid (Providers::random_threads at most) and, for
// dropout, how wide its loads are. prim.uniform says it as a formula over (seed, offset): the same numbers.
//
// The generator is asked once for all that draw one after the other with no other random operator between them
// (flashover.philox_state: its seed and offset as a tensor on the device, moved on by what all of them take).
//
//   In        core form; Providers::random_threads > 0
//   Out       native_dropout, bernoulli, rand, randn and the like as prims where their element order is known
#pragma once
#include <cstdint>

#include "graph/graph.h"
#include "target/providers.h"

namespace flashover::graph {

Graph lower_random(Graph core, const target::Providers& providers);

// Providers::random_threads of a GPU with so many multiprocessors for so many threads each.
int64_t random_threads(int multiprocessors, int threads);

}  // namespace flashover::graph
