// Matrix products that take the pointwise kernels around them along: out = epilogue(prologue(x) @ prologue(y)) in one
// kernel (loops/product.h).
//
//   In        the steps of a plan whose temporaries have no offsets yet, and its kernels
//   Out       candidates: a library call, kernels whose only result it alone reads, and the kernel that alone reads its
//             result
//   Promises  a fused step does what its steps did: operands are rounded as they were in memory, and from the product
//             on all is f32 (the library rounds in between)
//   Declines  whatever is not surely that: other readers, other layouts, reductions, writes in between
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "loops/product.h"
#include "plan/plan.h"

namespace flashover::planner {

constexpr size_t kNoStep = SIZE_MAX;

struct Candidate {
  size_t call = 0, launch = kNoStep;                  // steps; without a launch the epilogue only stores
  std::array<size_t, 2> before = {kNoStep, kNoStep};  // the steps of the prologues
  loops::Product product;
};
// Several ways for a call: with the kernel behind it, with those before it, with all.
std::vector<std::vector<Candidate>> find_products(const plan::Plan& p, std::span<const loops::Kernel> kernels);

// The one step that stands for all of them. kernel: its number.
plan::Step fused_step(const plan::Plan& p, const Candidate& c, int32_t kernel);

// What the call of a candidate without a launch returned is memory of the plan's own from now on.
void own_result(plan::Plan& p, const Candidate& c);

}  // namespace flashover::planner
