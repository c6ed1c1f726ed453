// A matrix product with pointwise kernels around it, as one kernel: out = epilogue(prologue(x) @ prologue(y)).
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "loops/loops.h"

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

}  // namespace flashover::loops
