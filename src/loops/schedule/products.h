// Matrix products that take the pointwise kernels around them along: out = epilogue(prologue(x) @ prologue(y)) in one
// kernel.
//
//   In        the steps of a plan whose temporaries have no place yet, and its kernels
//   Out       candidates: a library call, kernels whose only result it alone reads, and the kernel that alone reads its
//             result
//   Promises  a fused step does what its steps did: operands are rounded as they were in memory, and from the product
//             on all is f32 (the library rounds in between)
//   Declines  whatever is not surely that: other readers, other layouts, reductions, writes in between
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "loops/loops.h"
#include "plan/plan.h"

namespace flashover::loops {

// How a product is cut into programs.
struct ProductTile {
  int32_t m = 64, n = 64, k = 64, warps = 4, stages = 3;
  bool operator==(const ProductTile&) const = default;
};

// A kernel that makes an operand, computed where the operand is loaded.
struct Prologue {
  Kernel kernel;
  int32_t slot = -1;    // its parameter that is the operand; -1: there is none
  bool turned = false;  // it goes over the operand's columns first
  bool given() const { return slot >= 0; }
};

// Parameters: those of a's prologue but the operand, or a; the same for b; the bias if there is one; then the
// epilogue's without `slot`.
struct Product {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  DType dtype = DType::kBF16;       // of a and b
  std::array<int64_t, 3> a{}, b{};  // strides of [batch, m, k] and [batch, k, n]
  DType bias = DType::kUndefined;   // of n elements, added to each row
  bool relu = false;                // before the epilogue
  std::array<Prologue, 2> prologue;
  Kernel epilogue;
  int32_t slot = -1;  // its parameter that is the product
  ProductTile tile;
};
std::string text(const Product& p);  // equal text, equal code

constexpr size_t kNoStep = SIZE_MAX;

struct Candidate {
  size_t call = 0, launch = kNoStep;                  // steps; without a launch the epilogue only stores
  std::array<size_t, 2> before = {kNoStep, kNoStep};  // the steps of the prologues
  Product product;
};
// Several ways for a call: with the kernel behind it, with those before it, with all.
std::vector<std::vector<Candidate>> find_products(const plan::Plan& p, std::span<const Kernel> kernels);

// The one step that stands for all of them. kernel: its number.
plan::Step fused_step(const plan::Plan& p, const Candidate& c, int32_t kernel);

// What the call of a candidate without a launch returned is memory of the plan's own from now on.
void own_result(plan::Plan& p, const Candidate& c);

}  // namespace flashover::loops
