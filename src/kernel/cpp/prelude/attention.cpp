// Attention's parts: products of blocks that lie in the cache, operands laid out for them, and the online softmax.
#include "kernel/cpp/prelude/snippets.h"

namespace flashover::kernel::snippets {
namespace {

const Snippet kAttention[] = {
    {"product_4x4", kAvx512 | kN4, R"(
inline void product_4x4(const float* a, long ap, long as, const float* b, long bp, long k, float* c, long cp, bool add) {
  VF c00{}, c01{}, c02{}, c03{};
  VF c10{}, c11{}, c12{}, c13{};
  VF c20{}, c21{}, c22{}, c23{};
  VF c30{}, c31{}, c32{}, c33{};
  if (add) {
    c00 = load_f32(c); c01 = load_f32(c + W); c02 = load_f32(c + 2 * W); c03 = load_f32(c + 3 * W);
    c10 = load_f32(c + cp); c11 = load_f32(c + cp + W); c12 = load_f32(c + cp + 2 * W); c13 = load_f32(c + cp + 3 * W);
    c20 = load_f32(c + 2 * cp); c21 = load_f32(c + 2 * cp + W); c22 = load_f32(c + 2 * cp + 2 * W); c23 = load_f32(c + 2 * cp + 3 * W);
    c30 = load_f32(c + 3 * cp); c31 = load_f32(c + 3 * cp + W); c32 = load_f32(c + 3 * cp + 2 * W); c33 = load_f32(c + 3 * cp + 3 * W);
  }
  for (; k > 0; --k, a += as, b += bp) {
    const VF b0 = load_f32(b), b1 = load_f32(b + 1 * W), b2 = load_f32(b + 2 * W), b3 = load_f32(b + 3 * W);
    VF x;
    x = splat(a[0]); c00 = v_fma(x, b0, c00); c01 = v_fma(x, b1, c01); c02 = v_fma(x, b2, c02); c03 = v_fma(x, b3, c03);
    x = splat(a[ap]); c10 = v_fma(x, b0, c10); c11 = v_fma(x, b1, c11); c12 = v_fma(x, b2, c12); c13 = v_fma(x, b3, c13);
    x = splat(a[2 * ap]); c20 = v_fma(x, b0, c20); c21 = v_fma(x, b1, c21); c22 = v_fma(x, b2, c22); c23 = v_fma(x, b3, c23);
    x = splat(a[3 * ap]); c30 = v_fma(x, b0, c30); c31 = v_fma(x, b1, c31); c32 = v_fma(x, b2, c32); c33 = v_fma(x, b3, c33);
  }
  store_f32(c, c00); store_f32(c + W, c01); store_f32(c + 2 * W, c02); store_f32(c + 3 * W, c03);
  store_f32(c + cp, c10); store_f32(c + cp + W, c11); store_f32(c + cp + 2 * W, c12); store_f32(c + cp + 3 * W, c13);
  store_f32(c + 2 * cp, c20); store_f32(c + 2 * cp + W, c21); store_f32(c + 2 * cp + 2 * W, c22); store_f32(c + 2 * cp + 3 * W, c23);
  store_f32(c + 3 * cp, c30); store_f32(c + 3 * cp + W, c31); store_f32(c + 3 * cp + 2 * W, c32); store_f32(c + 3 * cp + 3 * W, c33);
}
)"},
    {"product_4x2", kAny, R"(
inline void product_4x2(const float* a, long ap, long as, const float* b, long bp, long k, float* c, long cp, bool add) {
  VF c00{}, c01{};
  VF c10{}, c11{};
  VF c20{}, c21{};
  VF c30{}, c31{};
  if (add) {
    c00 = load_f32(c); c01 = load_f32(c + W);
    c10 = load_f32(c + cp); c11 = load_f32(c + cp + W);
    c20 = load_f32(c + 2 * cp); c21 = load_f32(c + 2 * cp + W);
    c30 = load_f32(c + 3 * cp); c31 = load_f32(c + 3 * cp + W);
  }
  for (; k > 0; --k, a += as, b += bp) {
    const VF b0 = load_f32(b), b1 = load_f32(b + 1 * W);
    VF x;
    x = splat(a[0]); c00 = v_fma(x, b0, c00); c01 = v_fma(x, b1, c01);
    x = splat(a[ap]); c10 = v_fma(x, b0, c10); c11 = v_fma(x, b1, c11);
    x = splat(a[2 * ap]); c20 = v_fma(x, b0, c20); c21 = v_fma(x, b1, c21);
    x = splat(a[3 * ap]); c30 = v_fma(x, b0, c30); c31 = v_fma(x, b1, c31);
  }
  store_f32(c, c00); store_f32(c + W, c01);
  store_f32(c + cp, c10); store_f32(c + cp + W, c11);
  store_f32(c + 2 * cp, c20); store_f32(c + 2 * cp + W, c21);
  store_f32(c + 3 * cp, c30); store_f32(c + 3 * cp + W, c31);
}
)"},
    {"product_4x1", kAny, R"(
inline void product_4x1(const float* a, long ap, long as, const float* b, long bp, long k, float* c, long cp, bool add) {
  VF c00{};
  VF c10{};
  VF c20{};
  VF c30{};
  if (add) {
    c00 = load_f32(c);
    c10 = load_f32(c + cp);
    c20 = load_f32(c + 2 * cp);
    c30 = load_f32(c + 3 * cp);
  }
  for (; k > 0; --k, a += as, b += bp) {
    const VF b0 = load_f32(b);
    VF x;
    x = splat(a[0]); c00 = v_fma(x, b0, c00);
    x = splat(a[ap]); c10 = v_fma(x, b0, c10);
    x = splat(a[2 * ap]); c20 = v_fma(x, b0, c20);
    x = splat(a[3 * ap]); c30 = v_fma(x, b0, c30);
  }
  store_f32(c, c00);
  store_f32(c + cp, c10);
  store_f32(c + 2 * cp, c20);
  store_f32(c + 3 * cp, c30);
}
)"},
    {"add_product", kAvx512 | kN4, R"(
// c [rows][columns] = a [rows][k] b [k][columns], or is added up. Rows are a multiple of 4, columns of W. Element (r, i)
// of a is a[r * ap + i * as].
static void add_product(const float* a, long ap, long as, const float* b, long bp, long k, float* c, long cp, long rows, long columns, bool add) {
  long j = 0;
  for (; j + 4 * W <= columns; j += 4 * W)
    for (long r = 0; r < rows; r += 4) product_4x4(a + r * ap, ap, as, b + j, bp, k, c + r * cp + j, cp, add);
  for (; j + 2 * W <= columns; j += 2 * W)
    for (long r = 0; r < rows; r += 4) product_4x2(a + r * ap, ap, as, b + j, bp, k, c + r * cp + j, cp, add);
  for (; j < columns; j += W)
    for (long r = 0; r < rows; r += 4) product_4x1(a + r * ap, ap, as, b + j, bp, k, c + r * cp + j, cp, add);
}
)"},
    {"add_product", kAvx2 | kN2 | kS1, R"(
// c [rows][columns] = a [rows][k] b [k][columns], or is added up. Rows are a multiple of 4, columns of W. Element (r, i)
// of a is a[r * ap + i * as].
static void add_product(const float* a, long ap, long as, const float* b, long bp, long k, float* c, long cp, long rows, long columns, bool add) {
  long j = 0;
  for (; j + 2 * W <= columns; j += 2 * W)
    for (long r = 0; r < rows; r += 4) product_4x2(a + r * ap, ap, as, b + j, bp, k, c + r * cp + j, cp, add);
  for (; j < columns; j += W)
    for (long r = 0; r < rows; r += 4) product_4x1(a + r * ap, ap, as, b + j, bp, k, c + r * cp + j, cp, add);
}
)"},
    {"lay_columns_f32", kB8 | kAvx512 | kN4, R"(
// Rows of `width` numbers as columns of `to`; what is missing of the last W columns is 0.
static void lay_columns_f32(const float* from, long stride, long rows, long width, float* to, long pitch) {
  for (long r = 0; r < rows; r += W)
    for (long d = 0; d < width; d += W) {
      VF t[W];
      const int n = (int)(rows - r < W ? rows - r : W), m = (int)(width - d < W ? width - d : W);
      const float* p = from + r * stride + d;
      for (int i = 0; i < n; ++i, p += stride) t[i] = m == W ? load_f32(p) : load_f32_n(p, m);
      for (int i = n; i < W; ++i) t[i] = VF{};
      transpose_tile(t);
      for (int i = 0; i < m; ++i) store_f32(to + (d + i) * pitch + r, t[i]);
    }
}
)"},
    {"lay_columns_f32", kB4 | kN2 | kS1, R"(
// Rows of `width` numbers as columns of `to`; what is missing of the last W columns is 0.
static void lay_columns_f32(const float* from, long stride, long rows, long width, float* to, long pitch) {
  const long all = (rows + W - 1) / W * W;
  for (long d = 0; d < width; ++d)
    for (long r = 0; r < all; ++r) to[d * pitch + r] = r < rows ? from[r * stride + d] : 0.f;
}
)"},
    {"lay_rows_f32", kVector, R"(
// Rows of `width` numbers, times `scale`, as rows of whole vectors; what is missing of the last one is 0.
static void lay_rows_f32(const float* from, long stride, long rows, long width, float scale, float* to, long pitch) {
  for (long r = 0; r < rows; ++r, from += stride, to += pitch) {
    long d = 0;
    for (; d + W <= width; d += W) store_f32(to + d, load_f32(from + d) * splat(scale));
    if (d < width) store_f32(to + d, load_f32_n(from + d, (int)(width - d)) * splat(scale));
  }
}
)"},
    {"lay_rows_f32", kS1, R"(
// Rows of `width` numbers, times `scale`.
static void lay_rows_f32(const float* from, long stride, long rows, long width, float scale, float* to, long pitch) {
  for (long r = 0; r < rows; ++r)
    for (long d = 0; d < width; ++d) to[r * pitch + d] = load_f32(from + r * stride + d) * scale;
}
)"},
    {"finish_row_f32", kVector, R"(
// A row of sums, times `factor`, as a row of the result.
static void finish_row_f32(const float* sums, long width, float factor, float* to) {
  long d = 0;
  for (; d + W <= width; d += W) store_f32(to + d, load_f32(sums + d) * splat(factor));
  if (d < width) store_f32_n(to + d, load_f32(sums + d) * splat(factor), (int)(width - d));
}
)"},
    {"finish_row_f32", kS1, R"(
// A row of sums, times `factor`, as a row of the result.
static void finish_row_f32(const float* sums, long width, float factor, float* to) {
  for (long d = 0; d < width; ++d) store_f32(to + d, sums[d] * factor);
}
)"},
    {"lay_columns_bf16", kB8 | kAvx512 | kN4, R"(
// Rows of `width` numbers as columns of `to`; what is missing of the last W columns is 0.
static void lay_columns_bf16(const unsigned short* from, long stride, long rows, long width, float* to, long pitch) {
  for (long r = 0; r < rows; r += W)
    for (long d = 0; d < width; d += W) {
      VF t[W];
      const int n = (int)(rows - r < W ? rows - r : W), m = (int)(width - d < W ? width - d : W);
      const unsigned short* p = from + r * stride + d;
      for (int i = 0; i < n; ++i, p += stride) t[i] = m == W ? load_bf16(p) : load_bf16_n(p, m);
      for (int i = n; i < W; ++i) t[i] = VF{};
      transpose_tile(t);
      for (int i = 0; i < m; ++i) store_f32(to + (d + i) * pitch + r, t[i]);
    }
}
)"},
    {"lay_columns_bf16", kB4 | kN2 | kS1, R"(
// Rows of `width` numbers as columns of `to`; what is missing of the last W columns is 0.
static void lay_columns_bf16(const unsigned short* from, long stride, long rows, long width, float* to, long pitch) {
  const long all = (rows + W - 1) / W * W;
  for (long d = 0; d < width; ++d)
    for (long r = 0; r < all; ++r) to[d * pitch + r] = r < rows ? bf16_to_float(from[r * stride + d]) : 0.f;
}
)"},
    {"lay_rows_bf16", kVector, R"(
// Rows of `width` numbers, times `scale`, as rows of whole vectors; what is missing of the last one is 0.
static void lay_rows_bf16(const unsigned short* from, long stride, long rows, long width, float scale, float* to, long pitch) {
  for (long r = 0; r < rows; ++r, from += stride, to += pitch) {
    long d = 0;
    for (; d + W <= width; d += W) store_f32(to + d, load_bf16(from + d) * splat(scale));
    if (d < width) store_f32(to + d, load_bf16_n(from + d, (int)(width - d)) * splat(scale));
  }
}
)"},
    {"lay_rows_bf16", kS1, R"(
// Rows of `width` numbers, times `scale`.
static void lay_rows_bf16(const unsigned short* from, long stride, long rows, long width, float scale, float* to, long pitch) {
  for (long r = 0; r < rows; ++r)
    for (long d = 0; d < width; ++d) to[r * pitch + d] = load_bf16(from + r * stride + d) * scale;
}
)"},
    {"finish_row_bf16", kVector, R"(
// A row of sums, times `factor`, as a row of the result.
static void finish_row_bf16(const float* sums, long width, float factor, unsigned short* to) {
  long d = 0;
  for (; d + W <= width; d += W) store_bf16(to + d, load_f32(sums + d) * splat(factor));
  if (d < width) store_bf16_n(to + d, load_f32(sums + d) * splat(factor), (int)(width - d));
}
)"},
    {"finish_row_bf16", kS1, R"(
// A row of sums, times `factor`, as a row of the result.
static void finish_row_bf16(const float* sums, long width, float factor, unsigned short* to) {
  for (long d = 0; d < width; ++d) store_bf16(to + d, sums[d] * factor);
}
)"},
    {"lay_columns_f16", kB8 | kAvx512 | kN4, R"(
// Rows of `width` numbers as columns of `to`; what is missing of the last W columns is 0.
static void lay_columns_f16(const unsigned short* from, long stride, long rows, long width, float* to, long pitch) {
  for (long r = 0; r < rows; r += W)
    for (long d = 0; d < width; d += W) {
      VF t[W];
      const int n = (int)(rows - r < W ? rows - r : W), m = (int)(width - d < W ? width - d : W);
      const unsigned short* p = from + r * stride + d;
      for (int i = 0; i < n; ++i, p += stride) t[i] = m == W ? load_f16(p) : load_f16_n(p, m);
      for (int i = n; i < W; ++i) t[i] = VF{};
      transpose_tile(t);
      for (int i = 0; i < m; ++i) store_f32(to + (d + i) * pitch + r, t[i]);
    }
}
)"},
    {"lay_columns_f16", kB4 | kN2 | kS1, R"(
// Rows of `width` numbers as columns of `to`; what is missing of the last W columns is 0.
static void lay_columns_f16(const unsigned short* from, long stride, long rows, long width, float* to, long pitch) {
  const long all = (rows + W - 1) / W * W;
  for (long d = 0; d < width; ++d)
    for (long r = 0; r < all; ++r) to[d * pitch + r] = r < rows ? f16_to_float(from[r * stride + d]) : 0.f;
}
)"},
    {"lay_rows_f16", kVector, R"(
// Rows of `width` numbers, times `scale`, as rows of whole vectors; what is missing of the last one is 0.
static void lay_rows_f16(const unsigned short* from, long stride, long rows, long width, float scale, float* to, long pitch) {
  for (long r = 0; r < rows; ++r, from += stride, to += pitch) {
    long d = 0;
    for (; d + W <= width; d += W) store_f32(to + d, load_f16(from + d) * splat(scale));
    if (d < width) store_f32(to + d, load_f16_n(from + d, (int)(width - d)) * splat(scale));
  }
}
)"},
    {"lay_rows_f16", kS1, R"(
// Rows of `width` numbers, times `scale`.
static void lay_rows_f16(const unsigned short* from, long stride, long rows, long width, float scale, float* to, long pitch) {
  for (long r = 0; r < rows; ++r)
    for (long d = 0; d < width; ++d) to[r * pitch + d] = load_f16(from + r * stride + d) * scale;
}
)"},
    {"finish_row_f16", kVector, R"(
// A row of sums, times `factor`, as a row of the result.
static void finish_row_f16(const float* sums, long width, float factor, unsigned short* to) {
  long d = 0;
  for (; d + W <= width; d += W) store_f16(to + d, load_f32(sums + d) * splat(factor));
  if (d < width) store_f16_n(to + d, load_f32(sums + d) * splat(factor), (int)(width - d));
}
)"},
    {"finish_row_f16", kS1, R"(
// A row of sums, times `factor`, as a row of the result.
static void finish_row_f16(const float* sums, long width, float factor, unsigned short* to) {
  for (long d = 0; d < width; ++d) store_f16(to + d, sums[d] * factor);
}
)"},
    {"weigh_row", kAny, R"(
// The scores of n keys (room for whole vectors) become weights, relative to the largest score so far; what was added up
// before is to be multiplied by the result.
static float weigh_row(float* s, long n, float* largest, float* total) {
  const float none = -__builtin_inff();
  VF most = splat(none);
  long j = 0;
  for (; j + W <= n; j += W) {
    const VF x = load_f32(s + j);
    most = ((x > most) | (x != x)) ? x : most;
  }
  if (j < n) {
    const VF x = lanes_below((int)(n - j)) ? load_f32(s + j) : splat(none);
    store_f32(s + j, x);
    most = ((x > most) | (x != x)) ? x : most;
  }
  const float before = *largest, here = hmax(most);
  const float now = (here > before) | (here != here) ? here : before;
  // Where there is no score yet, or an infinite one, exp's argument stays what it is.
  const float shift = now == none || now == -none ? 0.f : now;
  VF sum{};
  for (j = 0; j < n; j += W) {
    const VF e = v_exp(load_f32(s + j) - splat(shift));
    store_f32(s + j, e);
    sum = sum + e;
  }
  const float shrink = before == now || before == none ? 1.f : one_exp(before - shift);
  *largest = now;
  *total = *total * shrink + hsum(sum);
  return shrink;
}
)"},
    {"one_exp", kVector, "inline float one_exp(float x) { return v_exp(splat(x))[0]; }\n"},
    {"one_exp", kS1, "inline float one_exp(float x) { return v_exp(x); }\n"},
    {"one_log", kVector, "inline float one_log(float x) { return v_log(splat(x))[0]; }\n"},
    {"one_log", kS1, "inline float one_log(float x) { return v_log(x); }\n"},
    {"scale_row", kAny, R"(
inline void scale_row(float* to, long width, float factor) {
  for (long d = 0; d < width; d += W) store_f32(to + d, load_f32(to + d) * splat(factor));
}
)"},
};

}  // namespace

Snippets attention() { return kAttention; }

}  // namespace flashover::kernel::snippets
