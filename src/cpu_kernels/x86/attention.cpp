// A task is a block of queries of one head, which passes over the keys block by block.
#include "cpu_kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu_kernels/team.h"
#include "target/features.h"
// Last: the rest of the file is for AVX512 and AMX.
#include "cpu_kernels/x86/attention_tiles.h"

namespace flashover::cpu {

bool has_avx512() {
  static const bool has = target::missing_feature("avx512").empty();
  return has;
}

namespace {

constexpr int64_t kRows = 32;       // queries at a time
constexpr int64_t kKeys = 512;      // keys at a time
constexpr int64_t kTaskRows = 512;  // queries of one task

// Of one task; `element` bytes of q, k, v.
struct Buffers {
  float *scores, *sums, *maxima, *totals;
  uint16_t* weights;  // bf16 only
  char *q, *k, *v;
  static size_t lay_out(const Attention& a, int64_t rows, char* base, Buffers* out) {
    const int64_t element = a.bf16 ? 2 : 4, keys = std::min(kKeys, up(a.keys, 32));
    size_t at = 0;
    const auto take = [&](int64_t bytes) {
      char* p = base + at;
      at += static_cast<size_t>(up(bytes, 64));
      return p;
    };
    char* arrays[] = {take(kRows * keys * 4),
                      take(up(rows, kRows) * up(a.value_width, 32) * 4),
                      take(up(rows, kRows) * 4),
                      take(up(rows, kRows) * 4),
                      take(a.bf16 ? kRows * keys * 2 : 0),
                      take(kRows * up(a.width, 32) * element),
                      take(keys * up(a.width, 32) * element),
                      take(keys * up(a.value_width, 32) * element)};
    if (out)
      *out = {reinterpret_cast<float*>(arrays[0]),
              reinterpret_cast<float*>(arrays[1]),
              reinterpret_cast<float*>(arrays[2]),
              reinterpret_cast<float*>(arrays[3]),
              reinterpret_cast<uint16_t*>(arrays[4]),
              arrays[5],
              arrays[6],
              arrays[7]};
    return at;
  }
};

}  // namespace

FLASHOVER_AVX512_BEGIN
namespace {

// c[8][16 n] = a[8][k] b[k][16 n] (+ c)
template <int n>
void multiply_f32(const float* a, int64_t a_pitch, const float* b, int64_t b_pitch, int64_t k, float* c,
                  int64_t c_pitch, bool add) {
  __m512 sum[8][n];
  const auto each = [&](auto f) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r)
#pragma GCC unroll 4
      for (int j = 0; j < n; ++j) f(r, j);
  };
  if (add)
    each([&](int r, int j) __attribute__((always_inline)) { sum[r][j] = _mm512_load_ps(c + r * c_pitch + j * 16); });
  else
    each([&](int r, int j) __attribute__((always_inline)) { sum[r][j] = _mm512_setzero_ps(); });
  for (int64_t i = 0; i < k; ++i, b += b_pitch) {
    each([&](int r, int j) __attribute__((always_inline)) {
      sum[r][j] = _mm512_fmadd_ps(_mm512_set1_ps(a[r * a_pitch + i]), _mm512_load_ps(b + j * 16), sum[r][j]);
    });
  }
  each([&](int r, int j) __attribute__((always_inline)) { _mm512_store_ps(c + r * c_pitch + j * 16, sum[r][j]); });
}

void product_f32(const float* a, int64_t a_pitch, const float* b, int64_t b_pitch, int64_t rows, int64_t columns,
                 int64_t k, float* c, int64_t c_pitch, bool add) {
  for (int64_t j = 0; j < columns; j += 48)
    for (int64_t r = 0; r < rows; r += 8) {
      const int64_t vectors = std::min<int64_t>((columns - j) / 16, 3);
      (vectors == 3 ? multiply_f32<3>
       : vectors == 2
           ? multiply_f32<2>
           : multiply_f32<1>)(a + r * a_pitch, a_pitch, b + j, b_pitch, k, c + r * c_pitch + j, c_pitch, add);
    }
}

// One query's scores become weights: exp(score - maximum), in place or as bf16. Returns by how much what was summed up
// before shrinks.
float weigh(const Attention& a, int64_t query, int64_t first_key, int64_t keys, int64_t all_keys,
            const char* const* bias_rows, float* scores, uint16_t* weights, float& maximum, float& total) {
  const __m512 scale = _mm512_set1_ps(a.scale), nothing = _mm512_set1_ps(-INFINITY);
  __m512 most = nothing;
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int64_t c = 0; c < keys; c += 16) {
    __mmask16 mask = first_lanes(keys - c);
    __m512 s = _mm512_mul_ps(_mm512_load_ps(scores + c), scale);
    for (int i = 0; i < a.biases; ++i) {
      const char* row = bias_rows[i];
      s = _mm512_add_ps(s, a.bias_bf16[i]
                               ? load_bf16(reinterpret_cast<const uint16_t*>(row) + first_key + c, mask)
                               : _mm512_maskz_loadu_ps(mask, reinterpret_cast<const float*>(row) + first_key + c));
    }
    if (a.causal)
      mask &= _mm512_cmple_epi32_mask(
          lane, _mm512_set1_epi32(static_cast<int>(std::clamp<int64_t>(query - first_key - c, -1, 16))));
    s = _mm512_mask_mov_ps(nothing, mask, s);
    _mm512_store_ps(scores + c, s);
    most = _mm512_max_ps(s, most);  // (NaN: the sum will tell)
  }
  const float before = maximum;
  maximum = std::max(maximum, _mm512_reduce_max_ps(most));
  // All -inf so far: keep exp's argument -inf (and a NaN a NaN).
  const __m512 shift = _mm512_set1_ps(maximum == -INFINITY ? 0.f : maximum);
  __m512 sum = _mm512_setzero_ps();
  for (int64_t c = 0; c < all_keys; c += 16) {
    __m512 e = _mm512_setzero_ps();
    if (c < keys) e = lane_exp_or_zero(_mm512_sub_ps(_mm512_load_ps(scores + c), shift), -87.33f);
    sum = _mm512_add_ps(sum, e);
    if (weights)
      store_bf16(weights + c, static_cast<__mmask16>(0xffff), e);
    else
      _mm512_store_ps(scores + c, e);
  }
  const float shrink = before == maximum ? 1.f : before == -INFINITY ? 0.f : std::exp(before - maximum);
  total = total * shrink + _mm512_reduce_add_ps(sum);
  return shrink;
}

void task(const Attention& a, int64_t head, int64_t first, int64_t rows) {
  Buffers b;
  auto* memory = static_cast<char*>(scratch(Buffers::lay_out(a, rows, nullptr, nullptr)));
  Buffers::lay_out(a, rows, memory, &b);
  const int64_t element = a.bf16 ? 2 : 4;
  const int64_t width = up(a.width, 32), value_width = a.bf16 ? up(a.value_width, 32) : up(a.value_width, 16);
  const auto at = [&](const AttentionOperand& o, int64_t bytes) {
    return static_cast<const char*>(o.data) + batch_offset(o.batch, a.batch, head) * bytes;
  };
  const char *q = at(a.q, element), *k = at(a.k, element), *v = at(a.v, element);
  const char* bias[kMaxBiases] = {};
  for (int i = 0; i < a.biases; ++i) bias[i] = at(a.bias[i], a.bias_bf16[i] ? 2 : 4);
  std::fill(b.maxima, b.maxima + rows, -INFINITY);
  std::fill(b.totals, b.totals + rows, 0.f);
  if (a.bf16) configure_tiles();
  const int64_t seen = a.causal ? std::min(a.keys, first + rows) : a.keys;
  for (int64_t key = 0; key < seen; key += kKeys) {
    const int64_t keys = std::min(kKeys, seen - key), all_keys = up(keys, 32);
    const char* block = k + key * a.k.row * element;
    // The keys' columns as rows of dwords: f32, or pairs of bf16.
    transpose_rows(block, a.k.row * element, keys, a.width * element, width * element / 4, all_keys,
                   reinterpret_cast<uint32_t*>(b.k), all_keys);
    const char* values = v + key * a.v.row * element;
    if (a.bf16)
      copy_pairs(values, a.v.row * 2, keys, a.value_width, reinterpret_cast<uint32_t*>(b.v), value_width, all_keys);
    else
      copy_rows(values, a.v.row * 4, keys, a.value_width * 4, b.v, value_width * 4, all_keys);
    for (int64_t r = 0; r < rows; r += kRows) {
      const int64_t here = std::min(kRows, rows - r), all_rows = a.bf16 ? up(here, 16) : up(here, 8);
      if (a.causal && key > first + r + here - 1) continue;
      float* sums = b.sums + r * value_width;
      copy_rows(q + (first + r) * a.q.row * element, a.q.row * element, here, a.width * element, b.q, width * element,
                all_rows);
      if (a.bf16)
        product_bf16(b.q, width * 2, b.k, all_keys * 4, all_rows, all_keys, width, b.scores, all_keys * 4, false);
      else
        product_f32(reinterpret_cast<const float*>(b.q), width, reinterpret_cast<const float*>(b.k), all_keys, all_rows,
                    all_keys, a.width, b.scores, all_keys, false);
      for (int64_t i = 0; i < here; ++i) {
        const char* bias_rows[kMaxBiases] = {};
        for (int n = 0; n < a.biases; ++n)
          bias_rows[n] = bias[n] + (first + r + i) * a.bias[n].row * (a.bias_bf16[n] ? 2 : 4);
        const float shrink = weigh(a, first + r + i, key, keys, all_keys, bias_rows, b.scores + i * all_keys,
                                   a.bf16 ? b.weights + i * all_keys : nullptr, b.maxima[r + i], b.totals[r + i]);
        if (key > 0 && shrink != 1.f)
          for (int64_t c = 0; c < value_width; c += 16)
            _mm512_store_ps(sums + i * value_width + c,
                            _mm512_mul_ps(_mm512_load_ps(sums + i * value_width + c), _mm512_set1_ps(shrink)));
      }
      if (a.bf16) {
        std::memset(b.weights + here * all_keys, 0, static_cast<size_t>((all_rows - here) * all_keys) * 2);
        product_bf16(b.weights, all_keys * 2, b.v, value_width * 4, all_rows, value_width, all_keys, sums,
                     value_width * 4, key > 0);
      } else {
        product_f32(b.scores, all_keys, reinterpret_cast<const float*>(b.v), value_width, all_rows, value_width, keys,
                    sums, value_width, key > 0);
      }
    }
  }
  if (a.bf16) _tile_release();
  char* out = const_cast<char*>(at(a.out, element));
  if (a.logsumexp.data) {
    auto* to =
        static_cast<float*>(const_cast<void*>(a.logsumexp.data)) + batch_offset(a.logsumexp.batch, a.batch, head);
    for (int64_t i = 0; i < rows; ++i) to[(first + i) * a.logsumexp.row] = b.maxima[i] + std::log(b.totals[i]);
  }
  for (int64_t i = 0; i < rows; ++i) {
    const bool none = b.maxima[i] == -INFINITY && b.totals[i] == 0.f && (a.zero_if_none || a.keys == 0);
    const __m512 total = _mm512_set1_ps(b.totals[i]);
    char* row = out + (first + i) * a.out.row * element;
    for (int64_t c = 0; c < a.value_width; c += 16) {
      const __mmask16 mask = first_lanes(a.value_width - c);
      const __m512 sum = _mm512_load_ps(b.sums + i * value_width + c);
      const __m512 x = none ? _mm512_setzero_ps() : _mm512_div_ps(sum, total);
      if (a.bf16)
        store_bf16(reinterpret_cast<uint16_t*>(row) + c, mask, x);
      else
        _mm512_mask_storeu_ps(reinterpret_cast<float*>(row) + c, mask, x);
    }
  }
}

}  // namespace

void attention(const Attention& a) {
  const int64_t heads = a.batch[0] * a.batch[1] * a.batch[2], team = team_size();
  if (a.queries == 0) return;
  int64_t rows = std::min(kTaskRows, a.queries);
  // Heads alone keep the team busy, or their queries are divided too (each block lays out the keys again).
  while (heads * (up(a.queries, rows) / rows) < 2 * team && rows > 64) rows = up(up(rows, 2) / 2, kRows);
  const int64_t blocks = up(a.queries, rows) / rows;
  in_parallel(heads * blocks, [&](int64_t n) {
    const int64_t first = n % blocks * rows;
    task(a, n / blocks, first, std::min(rows, a.queries - first));
  });
}

FLASHOVER_AVX512_END

}  // namespace flashover::cpu
