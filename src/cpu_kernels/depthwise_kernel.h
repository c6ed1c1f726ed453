// Depthwise sums of vectors.h, for any instruction set: included as panels_kernel.h.

// A vector of channels, T points; any taps.
template <int T>
void sum_taps(const float* x, int64_t step, const float* weight, const VectorKernels::Taps& taps, const Mask& mask,
              float* c, int64_t c_stride) {
  Vec sum[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) sum[t] = spread(0.f);
  for (int64_t row = 0; row < taps.rows; ++row) {
    const float *from = x + row * taps.row, *w = weight + row * taps.weight_row;
    for (int64_t column = 0; column < taps.columns; ++column, from += taps.column, w += 16) {
      const Vec factor = load(w);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sum[t] = fma(load_part(from + t * step, mask), factor, sum[t]);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) store(c + t * c_stride, sum[t]);
}

// The same where taps are side by side, `C` in a row, and points `apart` of them from each other.
template <int T, int C, int apart>
void sum_rows(const float* x, int64_t /*step*/, const float* weight, const VectorKernels::Taps& taps, const Mask& mask,
              float* c, int64_t c_stride) {
  Vec sum[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) sum[t] = spread(0.f);
  for (int64_t row = 0; row < taps.rows; ++row) {
    const float *from = x + row * taps.row, *w = weight + row * taps.weight_row;
    Vec factor[C];
#pragma GCC unroll 8
    for (int k = 0; k < C; ++k) factor[k] = load(w + k * 16);
#pragma GCC unroll 32
    for (int at = 0; at < (T - 1) * apart + C; ++at, from += taps.column) {
      const Vec element = load_part(from, mask);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        if (const int k = at - t * apart; k >= 0 && k < C) sum[t] = fma(element, factor[k], sum[t]);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) store(c + t * c_stride, sum[t]);
}

// Vector by vector of the panels.
template <void (*sum)(const float*, int64_t, const float*, const VectorKernels::Taps&, const Mask&, float*, int64_t)>
void sum_panels(const float* x, int64_t step, const float* weight, const VectorKernels::Taps& taps, int64_t panels,
                int64_t channels, float* c) {
  const int64_t there = (panels - 1) * 16 + channels;
  for (int64_t first = 0; first < panels * 16; first += kLanes)
    sum(x + (first < there ? first : 0), step, weight + first / 16 * taps.weight_panel + first % 16, taps,
        mask_of(there - first), c + first, panels * 16);
}
