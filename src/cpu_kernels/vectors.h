// What an instruction set has for products by panels (panels.h), for depthwise convolutions (depthwise_last.h) and for
// recurrent layers (recurrent.h): functions over a few numbers at a time, written once in panels_kernel.h,
// depthwise_kernel.h and recurrent_kernel.h.
#pragma once
#include <cstdint>

#include "cpu_kernels/linear.h"
#include "ops/recurrent_mode.h"

namespace flashover::cpu {

constexpr int64_t kPanel = 16;  // columns or channels that lie side by side in packed weights

// One sequence's step of a recurrent layer (recurrent.h). Gates lie side by side, `size` numbers each.
using ops::RecurrentMode;
constexpr int kRecurrentModes = 4;
struct RecurrentStep {
  const float *input, *hidden;  // what the gates get of the input, and of the state before
  const float *h, *c;           // the state before; c: LSTM's
  float *new_h, *new_c;
  float* kept;  // for the backward, or null: GRU's gates and what its last one got of the state; LSTM's gates and cell
  int64_t size;
};
struct RecurrentGradient {
  const float *y, *kept, *h, *c;  // the step's result, what it kept, and the state before
  float *dh, *dc;             // of the state behind the step; then what comes of the state before without the product
  float *d_input, *d_hidden;  // of the gates; d_hidden: GRU's, where the two differ
  int64_t size;
};

struct VectorKernels {
  int64_t rows, panels;  // of a tile of a product, at most
  // c (tile rows of `panels` x 16 numbers) = rows of x, `stride` apart, times panels, `panel_stride` apart, for `inner`
  // elements; `more`: added to what c holds. next: two panels' parts that are fetched into L2 meanwhile, or null.
  using Multiply = void (*)(const float* x, int64_t stride, const float* panel, int64_t panel_stride, int64_t inner,
                            bool more, const float* const* next, float* c);
  Multiply multiply[2][14];  // [panels - 1][rows - 1]
  // out = act(c + bias + added), for `columns` columns of a tile's rows.
  using Finish = void (*)(const float* c, int64_t c_stride, int64_t rows, int64_t columns, const float* bias,
                          const float* added, int64_t added_stride, float* out, int64_t stride);
  Finish finish[kActivations];
  // c (rows of c_stride) = rows of x times `columns` rows of w, each `inner` long; `more`: added to what c holds.
  using MultiplyFew = void (*)(const float* x, int64_t x_stride, const float* w, int64_t w_stride, int64_t columns,
                               int64_t inner, bool more, float* c, int64_t c_stride);
  MultiplyFew multiply_few[6];  // [rows - 1]
  int64_t rows_together;        // how many there are of those; as many keep the unit busiest
  // to[j * to_stride + i] = from[i * stride + j], for i < rows and j < columns.
  using Transpose = void (*)(const float* from, int64_t stride, int64_t rows, int64_t columns, float* to,
                             int64_t to_stride);
  Transpose transpose;

  // c (points of `panels` x 16 numbers) = for each point, `step` apart in x, the sum over taps times the weight. `channels`
  // of the last panel are there.
  struct Taps {
    int64_t rows, columns, row, column;  // how many there are, how far apart they are in x
    int64_t weight_row, weight_panel;    // how far apart in the weight rows of taps are, and panels
  };
  using Depthwise = void (*)(const float* x, int64_t step, const float* weight, const Taps& taps, int64_t panels,
                             int64_t channels, float* c);
  static constexpr int64_t kPoints = 8, kChannelPanels = 4;  // at most
  Depthwise depthwise[4];                                    // [points - 1]
  // The same for 4 or 8 points with 3, 5 or 7 columns of taps side by side, points one or two of them apart: what is
  // loaded serves all points that it belongs to. [columns / 2 - 1][points apart - 1][points / 4 - 1]
  Depthwise depthwise_of[3][2][2];

  using Recur = void (*)(const RecurrentStep& s);
  Recur recur[kRecurrentModes];
  using RecurBackward = void (*)(const RecurrentGradient& s);
  RecurBackward recur_backward[kRecurrentModes];
};
const VectorKernels* vector_kernels();  // of this machine; null: it has none, or the process may not use it
const VectorKernels& vector_kernels_avx2();
const VectorKernels& vector_kernels_avx512();

}  // namespace flashover::cpu
