// activation(a b + added) on f32 and bf16 matrices with the AMX unit, nothing packed beforehand: products of training,
// whose operands change with every step, in any order of rows and columns. Batches too.
//
// f32 numbers are three bf16 ones, as in linear.h. Each task packs what it multiplies - a group of panels of b, then a
// of blocks of 32 rows one by one - into memory of its thread that stays in L2 (1.2 MB at most); sums of the chunks of a
// long inner dim meet in the result.
//
// What the bf16x3 split cannot represent - rows and columns with infinities, NaN or numbers from 2^63 on, rows and columns all of
// whose numbers are below 2^-100, rows times columns whose largest numbers make less than 2^-90 - is multiplied in f32
// arithmetic.
#pragma once
#include <cstdint>

#include "cpu_kernels/linear.h"

namespace flashover::cpu {

// T: the element, uint16_t for bf16. Then the result may be f32 (the gradients of weights that autocast rounded).
// Strides may be anything, 0 where a batch repeats.
template <typename T, typename O = T>
struct ProductOf {
  const T* a;  // [batch, rows, inner]
  int64_t a_batch, a_row, a_inner;
  const T* b;  // [batch, inner, columns]
  int64_t b_batch, b_inner, b_column;
  const O* added = nullptr;  // [batch, rows, columns], or null
  int64_t added_batch = 0, added_row = 0, added_column = 0;
  O* out;  // dense
  int64_t batch, rows, inner, columns;
  Activation activation = Activation::kNone;
};
void product(const ProductOf<float>& p);
void product(const ProductOf<uint16_t>& p);
void product(const ProductOf<uint16_t, float>& p);

}  // namespace flashover::cpu
