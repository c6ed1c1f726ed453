// Gradients of tables (f32): rows of zeros, or those of another gradient, to which rows of a gradient are added. Each
// thread has a part of the table, which it fills and adds to.
#pragma once
#include <cstdint>

namespace flashover::cpu {

struct TableGradient {
  const float* grad = nullptr;  // rows of `width`, one behind the other
  const void* indices = nullptr;
  bool narrow = false;               // 32 bits each; else 64
  const int64_t* offsets = nullptr;  // of bags: where the indices of each row of `grad` begin; null: one index a row
  int64_t bags = 0;
  int64_t count = 0;      // of indices
  int64_t left_out = -1;  // an index
  float* out = nullptr;
  int64_t rows = 0, width = 0;
  // To what `out` holds; without offsets. What goes to one row is summed first: the result is that of two tables added.
  bool onto = false;
};
// Indices outside of the table count for nothing. Needs AVX512.
void table_gradient(const TableGradient& t);

}  // namespace flashover::cpu
