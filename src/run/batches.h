// Runs of launches that do not depend on each other (the updates of a model's many parameters), shared out among the
// threads as wholes: one team for all of them instead of one for each.
//
//   In        a plan for the CPU
//   Out       batches, each a range of its steps
//   Promises  no launch of a batch touches memory that another one of it writes; inputs with different numbers are
//             taken to be different memory where one of them is written, as everywhere in a plan
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "cpu_kernels/team.h"
#include "plan/plan.h"

namespace flashover::run {

struct Batch {
  int32_t first = 0, count = 0;  // steps
  std::vector<int32_t> alone;    // of these steps: large, each is best run by all threads
  std::vector<int32_t> shared;   // the others, the largest first
};

// By tensor: its bytes, and where it lies in the arena.
std::vector<Batch> find_batches(const plan::Plan& plan, std::span<const int64_t> bytes,
                                std::span<const int64_t> arena_offsets, int threads);

// Calls launch(step) for the steps of `shared`, on as many threads as torch has. Throws what the first one threw.
template <typename Launch>
void run_shared(const Batch& batch, const Launch& launch) {
  cpu::in_parallel(static_cast<int64_t>(batch.shared.size()),
                   [&](int64_t i) { launch(batch.shared[static_cast<size_t>(i)]); });
}

}  // namespace flashover::run
