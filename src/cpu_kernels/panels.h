// act(x w^T + bias + added) on f32 matrices with the processor's vectors (AVX2 or AVX512), the weight packed beforehand.
//
// Packed: panels of 16 columns, one behind the other; in a panel, its 16 numbers for each element of the inner dim,
// zeros behind the last column. The same for all instruction sets. A tile of the result - some rows of one or two
// panels - is summed up in registers: each element of the rows is spread over a vector and multiplied with the panel's
// line. Sums of more than kInnerChunk products are made in chunks, which keeps their error small.
#pragma once
#include <cstdint>

#include "cpu_kernels/linear.h"
#include "cpu_kernels/vectors.h"

namespace flashover::cpu {

constexpr int64_t kInnerChunk = 128;
inline int64_t panel_elements(int64_t columns, int64_t inner) { return ceil_div(columns, kPanel) * kPanel * inner; }
// One panel of so many columns.
void pack_panel(const float* weight, int64_t column_stride, int64_t inner_stride, int64_t columns, int64_t inner,
                float* panel);
void pack_panels(const float* weight, int64_t column_stride, int64_t inner_stride, int64_t columns, int64_t inner,
                 float* packed);

struct PanelLinear {
  const float* x;  // [rows, inner], the inner dim dense
  int64_t row_stride;
  const float* packed;
  const float* bias;   // [columns], or null
  const float* added;  // [rows, columns], the columns dense, or null
  int64_t added_stride;
  float* out;  // the columns dense
  int64_t rows, inner, columns;
  Activation activation = Activation::kNone;
  int64_t out_stride = columns;
};
void linear(const PanelLinear& l);

// By one thread: rows [first, last) of one group of the panels that a tile takes; x is row `first`, rows `stride` apart.
void take_panels(const PanelLinear& l, int64_t group, int64_t first, int64_t last, const float* x, int64_t stride);

}  // namespace flashover::cpu
