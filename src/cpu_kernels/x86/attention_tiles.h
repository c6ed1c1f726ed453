// What attention and its backward share: operands of the AMX unit out of rows, and the product itself. Include last, as
// lanes.h.
#pragma once
#include <algorithm>
#include <cstdint>

#include "cpu_kernels/attention.h"
#include "cpu_kernels/x86/lanes.h"

namespace flashover::cpu {

static inline int64_t up(int64_t n, int64_t d) { return (n + d - 1) / d * d; }

static inline int64_t batch_offset(const Batch& strides, const Batch& sizes, int64_t n) {
  int64_t at = 0;
  for (size_t d = kBatchDims; d-- > 0;) {
    at += n % sizes[d] * strides[d];
    n /= sizes[d];
  }
  return at;
}

FLASHOVER_AVX512_BEGIN

// 16 rows of 16 dwords, `from` + row * stride bytes, become columns of `to` (rows of `pitch` dwords). What lies outside
// `rows` or `bytes` is 0.
static inline void transpose16(const char* from, int64_t stride, int64_t rows, int64_t bytes, uint32_t* to,
                               int64_t pitch) {
  __m512i r[16], t[16];
  const __mmask32 mask = bytes >= 64 ? ~__mmask32{0} : (__mmask32{1} << (bytes / 2)) - 1;
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    r[i] = i < rows ? _mm512_maskz_loadu_epi16(mask, from + i * stride) : _mm512_setzero_si512();
#pragma GCC unroll 16
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 8; ++i) {
    const __m512i low = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88), high = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    _mm512_store_si512(to + i * pitch, low);
    _mm512_store_si512(to + (i + 8) * pitch, high);
  }
}

static inline void copy_rows(const char* from, int64_t stride, int64_t rows, int64_t bytes, char* to, int64_t pitch,
                             int64_t all_rows) {
  for (int64_t r = 0; r < all_rows; ++r, to += pitch)
    for (int64_t b = 0; b < pitch; b += 64) {
      const int64_t n = r < rows ? (bytes - b) / 2 : 0;
      const __mmask32 mask = n >= 32 ? ~__mmask32{0} : n <= 0 ? __mmask32{0} : (__mmask32{1} << n) - 1;
      _mm512_store_si512(to + b, _mm512_maskz_loadu_epi16(mask, from + (mask ? r * stride + b : 0)));
    }
}

// Rows in pairs: dword (p, c) holds elements (2p, c) and (2p + 1, c), as the tile multiply wants its right matrix.
static inline void copy_pairs(const char* from, int64_t stride, int64_t rows, int64_t width, uint32_t* to,
                              int64_t pitch, int64_t all_rows) {
  for (int64_t r = 0; r < all_rows; r += 2, to += pitch)
    for (int64_t c = 0; c < pitch; c += 16) {
      const __mmask16 mask = first_lanes(width - c);
      const auto half = [&](int64_t row) {
        const __mmask16 m = row < rows ? mask : static_cast<__mmask16>(0);
        return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, from + (m ? row * stride + c * 2 : 0)));
      };
      _mm512_store_si512(to + c, _mm512_or_si512(half(r), _mm512_slli_epi32(half(r + 1), 16)));
    }
}

// Pitches in bytes; k, columns multiples of 32. c: f32.
static inline void product_bf16(const void* a, int64_t a_pitch, const void* b, int64_t b_pitch, int64_t rows,
                                int64_t columns, int64_t k, float* c, int64_t c_pitch, bool add) {
  __asm__ volatile("" ::: "memory");  // the tile loads do not say that they read memory
  const bool two = rows > 16;
  for (int64_t j = 0; j < columns; j += 32) {
    float* const c0 = c + j;
    float* const c1 = c0 + 16 * (c_pitch / 4);
    if (add) {
      _tile_loadd(0, c0, c_pitch);
      _tile_loadd(1, c0 + 16, c_pitch);
      if (two) {
        _tile_loadd(2, c1, c_pitch);
        _tile_loadd(3, c1 + 16, c_pitch);
      }
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    const char* left = static_cast<const char*>(a);
    const char* right = static_cast<const char*>(b) + j * 4;
    for (int64_t i = 0; i < k; i += 32, left += 64, right += 16 * b_pitch) {
      _tile_loadd(6, right, b_pitch);
      _tile_loadd(7, right + 64, b_pitch);
      _tile_loadd(4, left, a_pitch);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if (two) {
        _tile_loadd(5, left + 16 * a_pitch, a_pitch);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, c0, c_pitch);
    _tile_stored(1, c0 + 16, c_pitch);
    if (two) {
      _tile_stored(2, c1, c_pitch);
      _tile_stored(3, c1 + 16, c_pitch);
    }
  }
}

// `rows` rows of bf16 numbers, `width` dwords (a multiple of 16) of each, as columns of dwords: element (d, n) holds
// numbers 2 d and 2 d + 1 of row n. `bytes` of a row exist, what lies outside is 0; `all_rows` is a multiple of 16.
static inline void transpose_rows(const char* from, int64_t stride, int64_t rows, int64_t bytes, int64_t width,
                                  int64_t all_rows, uint32_t* to, int64_t pitch) {
  for (int64_t n = 0; n < all_rows; n += 16)
    for (int64_t d = 0; d < width; d += 16) {
      const bool inside = n < rows && d * 4 < bytes;
      transpose16(from + (inside ? n * stride + d * 4 : 0), stride, inside ? rows - n : 0, inside ? bytes - d * 4 : 0,
                  to + d * pitch + n, pitch);
    }
}

FLASHOVER_AVX512_END

}  // namespace flashover::cpu
