// The tiles of panels.h, for any instruction set: included, once for each, where Vec stands with its arithmetic
// (lane_math.h), load(), store(), load_first(), store_first(), kLanes and kRows, the most rows of a tile.

// P: panels. Pointers to every third row, since an address has one scaled index: row, row + stride, row + 2 * stride.
// next: see vectors.h; looked at where `fetches`.
template <int R, int P, bool fetches>
inline __attribute__((always_inline)) void sum_tile(const float* x, int64_t stride, const float* panel,
                                                    int64_t panel_stride, int64_t inner, bool more,
                                                    const float* const* next, float* c) {
  constexpr int kVectors = P * 16 / kLanes, kPerPanel = 16 / kLanes, kGroups = (R + 2) / 3;
  Vec sum[R][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = spread(0.f);
  const float* from[kGroups];
#pragma GCC unroll 8
  for (int g = 0; g < kGroups; ++g) from[g] = x + 3 * g * stride;
  const float *second = panel + (P - 1) * panel_stride, *soon = fetches ? next[0] : nullptr,
              *then = fetches ? next[1] : nullptr;
#pragma GCC unroll 4
  for (int64_t k = 0; k < inner; ++k) {
    Vec line[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) line[v] = load((v < kPerPanel ? panel : second) + v % kPerPanel * kLanes);
    panel += 16;
    second += 16;
    if constexpr (fetches) {
      __builtin_prefetch(soon, 0, 2);  // into L2
      __builtin_prefetch(then, 0, 2);
      soon += 16;
      then += 16;
    }
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

template <int R, int P>
void multiply_tile(const float* x, int64_t stride, const float* panel, int64_t panel_stride, int64_t inner, bool more,
                   const float* const* next, float* c) {
  if (next)
    sum_tile<R, P, true>(x, stride, panel, panel_stride, inner, more, next, c);
  else
    sum_tile<R, P, false>(x, stride, panel, panel_stride, inner, more, next, c);
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

constexpr int kSums = kRows == 14 || kLanes == 4 ? 24 : 12;  // of vectors, beside what is multiplied, in registers
using Row = float __attribute__((vector_size(4 * kLanes)));
using Lane = int32_t __attribute__((vector_size(4 * kLanes)));

inline float sum_of_lanes(Vec x) {
  Row row;
  std::memcpy(&row, &x, sizeof row);
  Lane lane;
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
#pragma GCC unroll 4
  for (int step = kLanes / 2; step > 0; step /= 2) row += __builtin_shuffle(row, lane ^ step);
  return row[0];
}

// The sums of the lanes of four vectors: neighbours first, so that each step has half as many vectors to add.
inline void sum_lanes_of_four(const Vec (&x)[4], float* out, bool more) {
  Row row[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) std::memcpy(&row[i], &x[i], sizeof(Row));
  Lane lane;
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  const Lane first = lane & 1, second = lane & 2;
  // Lanes 2i and 2i + 1: of one vector's pair of lanes, and of the other's.
  const Lane even = (lane & ~1) + first * kLanes;
  const auto pairs = [&](const Row& a, const Row& b) __attribute__((always_inline)) {
    return __builtin_shuffle(a, b, even) + __builtin_shuffle(a, b, even + 1);
  };
  const Row ab = pairs(row[0], row[1]), cd = pairs(row[2], row[3]);
  // Of each four lanes: those of ab, then those of cd.
  const Lane fours = (lane & ~3) + first + second / 2 * kLanes;
  Row sum = __builtin_shuffle(ab, cd, fours) + __builtin_shuffle(ab, cd, fours + 2);
#pragma GCC unroll 4
  for (int step = kLanes / 2; step >= 4; step /= 2) sum += __builtin_shuffle(sum, lane ^ step);
  using Four = float __attribute__((vector_size(16), aligned(4)));
  Four result;
  std::memcpy(&result, &sum, sizeof result);
  if (more) result += *reinterpret_cast<const Four*>(out);
  *reinterpret_cast<Four*>(out) = result;
}

// Elements k and those behind it, `left` of them where that is less than a vector.
template <int R, int C, bool whole>
inline __attribute__((always_inline)) void multiply_lanes(const float* x, int64_t x_stride, const float* w,
                                                          int64_t w_stride, int64_t left, Vec (&sum)[R][C]) {
  Vec row[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) row[r] = whole ? load(x + r * x_stride) : load_first(x + r * x_stride, left);
#pragma GCC unroll 8
  for (int n = 0; n < C; ++n) {
    const float* const from = w + n * w_stride;
    if constexpr (R < 3) __builtin_prefetch(from + C * w_stride, 0, 2);  // of the rows that are next
    const Vec line = whole ? load(from) : load_first(from, left);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[r][n] = fma(row[r], line, sum[r][n]);
  }
}

// c[r][n] = row r of x times row n of w, for R and C of them: each number of w is read once, and nothing is packed.
template <int R, int C>
void multiply_rows(const float* x, int64_t x_stride, const float* w, int64_t w_stride, int64_t inner, bool more,
                   float* c, int64_t c_stride) {
  Vec sum[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < C; ++n) sum[r][n] = spread(0.f);
  int64_t k = 0;
  for (; k + kLanes <= inner; k += kLanes) multiply_lanes<R, C, true>(x + k, x_stride, w + k, w_stride, kLanes, sum);
  if (k < inner) multiply_lanes<R, C, false>(x + k, x_stride, w + k, w_stride, inner - k, sum);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    float* const to = c + r * c_stride;
    if constexpr (C % 4 == 0) {
#pragma GCC unroll 2
      for (int n = 0; n < C; n += 4)
        sum_lanes_of_four({sum[r][n], sum[r][n + 1], sum[r][n + 2], sum[r][n + 3]}, to + n, more);
    } else {
#pragma GCC unroll 8
      for (int n = 0; n < C; ++n) to[n] = sum_of_lanes(sum[r][n]) + (more ? to[n] : 0.f);
    }
  }
}

// As many columns at a time as there are registers for.
template <int R>
void multiply_few(const float* x, int64_t x_stride, const float* w, int64_t w_stride, int64_t columns, int64_t inner,
                  bool more, float* c, int64_t c_stride) {
  constexpr int kMost = kSums / R, kColumns = kMost >= 8 ? 8 : kMost >= 4 ? 4 : kMost >= 2 ? 2 : 1;
  int64_t n = 0;
  for (; n + kColumns <= columns; n += kColumns)
    multiply_rows<R, kColumns>(x, x_stride, w + n * w_stride, w_stride, inner, more, c + n, c_stride);
  for (; n < columns; ++n) multiply_rows<R, 1>(x, x_stride, w + n * w_stride, w_stride, inner, more, c + n, c_stride);
}

// to[j * to_stride + i] = from[i * stride + j]: blocks of kLanes by kLanes in registers, where in step s each pair of
// rows that are s apart exchanges the lanes that are.
inline void transpose_block(const float* from, int64_t stride, float* to, int64_t to_stride) {
  Row row[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) std::memcpy(&row[i], from + i * stride, sizeof(Row));
  Lane lane;
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
#pragma GCC unroll 4
  for (int step = 1; step < kLanes; step *= 2) {
    const Lane odd = (lane & step) != 0;
    const Lane upper = odd ? lane - step + kLanes : lane, lower = odd ? lane + kLanes : lane + step;
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i & step) continue;
      const Row a = row[i], b = row[i + step];
      row[i] = __builtin_shuffle(a, b, upper);
      row[i + step] = __builtin_shuffle(a, b, lower);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) std::memcpy(to + i * to_stride, &row[i], sizeof(Row));
}

constexpr int64_t kLine = 16;  // numbers in a line of the cache

inline void transpose_lines(const float* from, int64_t stride, int64_t rows, int64_t columns, float* to,
                            int64_t to_stride) {
  const int64_t whole_rows = rows - rows % kLanes, whole_columns = columns - columns % kLanes;
  // A line of the cache at a time: where the rows lie in the same sets of L1, it is not there for a second block.
  for (int64_t line = 0; line < whole_columns; line += kLine)
    for (int64_t i = 0; i < whole_rows; i += kLanes)
      for (int64_t j = line; j < std::min(line + kLine, whole_columns); j += kLanes)
        transpose_block(from + i * stride + j, stride, to + j * to_stride + i, to_stride);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; ++j) to[j * to_stride + i] = from[i * stride + j];
}
