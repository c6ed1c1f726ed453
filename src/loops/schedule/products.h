// Matrix products that take the pointwise kernel behind them along: one kernel computes out = epilogue(a @ b).
//
//   In        the steps of a plan whose temporaries have no place yet, and its kernels
//   Out       candidates: a library call and the kernel that alone reads its result
//   Promises  a fused step does what its two steps did, in f32 from the product on (the library rounds in between)
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

// Parameters: a, b, the bias if there is one, then the epilogue's without `slot`.
struct Product {
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::kBF16;       // of a and b
  std::array<int64_t, 2> a{}, b{};  // strides of [m, k] and [k, n]
  DType bias = DType::kUndefined;   // of n elements, added to each row
  bool relu = false;                // before the epilogue
  Kernel epilogue;
  int32_t slot = -1;  // its parameter that is the product
  ProductTile tile;
};
std::string text(const Product& p);  // equal text, equal code

struct Candidate {
  size_t call = 0, launch = 0;  // steps
  Product product;
};
std::vector<Candidate> find_products(const plan::Plan& p, std::span<const Kernel> kernels);

// The one step that stands for both. kernel: its number.
plan::Step fused_step(const plan::Plan& p, const Candidate& c, int32_t kernel);

}  // namespace flashover::loops
