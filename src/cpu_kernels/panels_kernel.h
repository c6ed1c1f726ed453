// The tiles of panels.h, for any instruction set: included, once for each, where Vec stands with its arithmetic
// (lane_math.h), load(), store(), load_first(), store_first(), kLanes and kRows, the most rows of a tile.

// P: panels. Pointers to every third row, since an address has one scaled index: row, row + stride, row + 2 * stride.
template <int R, int P>
void multiply_tile(const float* x, int64_t stride, const float* panel, int64_t panel_stride, int64_t inner, bool more,
                   const float* const (&next)[2], float* c) {
  constexpr int kVectors = P * 16 / kLanes, kPerPanel = 16 / kLanes, kGroups = (R + 2) / 3;
  Vec sum[R][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = spread(0.f);
  const float* from[kGroups];
#pragma GCC unroll 8
  for (int g = 0; g < kGroups; ++g) from[g] = x + 3 * g * stride;
  const float *second = panel + (P - 1) * panel_stride, *soon = next[0], *then = next[1];
#pragma GCC unroll 4
  for (int64_t k = 0; k < inner; ++k) {
    Vec line[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) line[v] = load((v < kPerPanel ? panel : second) + v % kPerPanel * kLanes);
    __builtin_prefetch(soon, 0, 2);  // into L2
    __builtin_prefetch(then, 0, 2);
    panel += 16;
    second += 16;
    soon += 16;
    then += 16;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const float* row = from[r / 3];
      const Vec element = spread(*(r % 3 == 0 ? row : r % 3 == 1 ? row + stride : row + 2 * stride));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(element, line[v], sum[r][v]);
    }
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g) ++from[g];
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* const at = c + (r * kVectors + v) * kLanes;
      store(at, more ? load(at) + sum[r][v] : sum[r][v]);
    }
}

template <Vec (*activation)(Vec)>
void finish_tile(const float* c, int64_t c_stride, int64_t rows, int64_t columns, const float* bias, const float* added,
                 int64_t added_stride, float* out, int64_t stride) {
  for (int64_t first = 0; first < columns; first += kLanes) {
    const int64_t left = columns - first;
    const auto read = [&](const float* p) __attribute__((always_inline)) {
      return left >= kLanes ? load(p + first) : load_first(p + first, left);
    };
    const Vec b = bias ? read(bias) : spread(0.f);
    for (int64_t r = 0; r < rows; ++r) {
      Vec y = load(c + r * c_stride + first) + b;
      if (added) y = y + read(added + r * added_stride);
      y = activation(y);
      float* to = out + r * stride + first;
      left >= kLanes ? store(to, y) : store_first(to, y, left);
    }
  }
}
