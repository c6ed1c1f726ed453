// Gradients of attention from the kept logsumexp: the weights are computed again, never stored as a whole.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu_kernels/attention.h"
#include "cpu_kernels/team.h"
// Last: the rest of the file is for AVX512 and AMX.
#include "cpu_kernels/x86/attention_tiles.h"

// Scores are computed with a key a row and a query a column: so weights (and what their gradients leave of them) are
// left operands of the products that sum over queries as they come, and right operands of the one that sums over keys
// when two rows are interleaved. What is transposed is the gradient of q, which is small.
namespace flashover::cpu {
namespace {

constexpr int64_t kKeys = 32;      // at a time
constexpr int64_t kQueries = 128;  // at a time

// Of one head.
struct Buffers {
  uint16_t *keys, *values, *columns;                // rows of k and v; columns of k
  float *grad_k, *grad_v;                           // sums
  uint32_t *q_columns, *grad_columns;               // dwords: two numbers of a query's row
  uint32_t *q_pairs, *grad_pairs;                   // dwords: the numbers of two queries
  float *logsumexp, *sums;                          // of each query
  float *scores, *grad_weights, *bias, *bias_rows;  // [keys][queries], the last one as it lies
  uint16_t *weights, *grad_scores;
  uint32_t* score_pairs;  // dwords: grad_scores of two keys
  float *grad_q, *turned;

  static size_t lay_out(const Attention& a, char* base, Buffers* out) {
    const int64_t keys = up(a.keys, kKeys), queries = std::min(kQueries, up(a.queries, 32));
    const int64_t width = up(a.width, 32), value_width = up(a.value_width, 32);
    size_t at = 0;
    Buffers none, &b = out ? *out : none;
    const auto take = [&]<typename T>(T*& p, int64_t count) {
      p = reinterpret_cast<T*>(base + at);
      at += static_cast<size_t>(up(count * static_cast<int64_t>(sizeof(T)), 64));
    };
    take(b.keys, keys * width);
    take(b.values, keys * value_width);
    take(b.columns, keys * width);
    take(b.grad_k, keys * width);
    take(b.grad_v, keys * value_width);
    take(b.q_columns, queries * width / 2);
    take(b.grad_columns, queries * value_width / 2);
    take(b.q_pairs, queries * width / 2);
    take(b.grad_pairs, queries * value_width / 2);
    take(b.logsumexp, queries);
    take(b.sums, queries);
    take(b.scores, kKeys * queries);
    take(b.grad_weights, kKeys * queries);
    take(b.bias, a.biases ? kKeys * queries : 0);
    take(b.bias_rows, a.biases ? kKeys * queries : 0);
    take(b.weights, kKeys * queries);
    take(b.grad_scores, kKeys * queries);
    take(b.score_pairs, keys * queries / 2);
    take(b.grad_q, width * queries);
    take(b.turned, 256);
    return at;
  }
};

}  // namespace

FLASHOVER_AVX512_BEGIN
namespace {

struct Rows {  // of one head
  const char* at;
  int64_t stride;  // bytes
  const char* of(int64_t row) const { return at + row * stride; }
};
Rows rows_of(const AttentionOperand& o, const Batch& batch, int64_t head, int64_t element) {
  return {static_cast<const char*>(o.data) + batch_offset(o.batch, batch, head) * element, o.row * element};
}

__m512 load_any(const char* row, bool bf16, int64_t c, __mmask16 mask) {
  return bf16 ? load_bf16(reinterpret_cast<const uint16_t*>(row) + c, mask)
              : _mm512_maskz_loadu_ps(mask, reinterpret_cast<const float*>(row) + c);
}

// Columns of k: rows of 16-bit numbers out of columns of dwords that hold two.
void take_columns(const Rows& k, int64_t keys, int64_t width, int64_t all_keys, int64_t all_width, uint16_t* to) {
  alignas(64) uint32_t block[256];
  for (int64_t n = 0; n < all_keys; n += 16)
    for (int64_t d = 0; d < all_width; d += 32) {
      transpose_rows(k.of(n < keys ? n : 0) + (d < width ? d * 2 : 0), k.stride, d < width ? keys - n : 0,
                     std::max<int64_t>(0, (width - d) * 2), 16, 16, block, 16);
      for (int64_t i = 0; i < 16; ++i) {
        const __m512i two = _mm512_load_si512(block + i * 16);
        uint16_t* row = to + (d + 2 * i) * all_keys + n;
        _mm256_store_si256(reinterpret_cast<__m256i*>(row), _mm512_cvtepi32_epi16(two));
        _mm256_store_si256(reinterpret_cast<__m256i*>(row + all_keys),
                           _mm512_cvtepi32_epi16(_mm512_srli_epi32(two, 16)));
      }
    }
}

float dot(const char* x, const char* y, int64_t n) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t c = 0; c < n; c += 16) {
    const __mmask16 mask = first_lanes(n - c);
    sum = _mm512_fmadd_ps(load_any(x, true, c, mask), load_any(y, true, c, mask), sum);
  }
  return _mm512_reduce_add_ps(sum);
}

// The sum of all biases for keys from first_key on and queries from `first` on, as [key][query].
void gather_bias(const Attention& a, const Rows* bias, int64_t first, int64_t queries, int64_t all_queries,
                 int64_t first_key, const Buffers& b) {
  const int64_t keys = std::min(kKeys, a.keys - first_key);
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t c = 0; c < kKeys; c += 16) {
      const __mmask16 mask = first_lanes(keys - c);
      __m512 sum = _mm512_setzero_ps();
      for (int n = 0; n < a.biases; ++n)
        sum = _mm512_add_ps(sum, load_any(bias[n].of(first + i), a.bias_bf16[n], first_key + c, mask));
      _mm512_store_ps(b.bias_rows + i * kKeys + c, sum);
    }
  transpose_rows(reinterpret_cast<const char*>(b.bias_rows), kKeys * 4, queries, kKeys * 4, kKeys, all_queries,
                 reinterpret_cast<uint32_t*>(b.bias), all_queries);
}

// Scores and gradients of weights of one block become weights, and gradients of scores in two forms.
void weigh(const Attention& a, int64_t first, int64_t all_queries, int64_t first_key, const Buffers& b) {
  const __m512 scale = _mm512_set1_ps(a.scale);
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  uint32_t* pairs = b.score_pairs + first_key / 2 * all_queries;
  for (int64_t i = 0; i < kKeys; i += 2, pairs += all_queries)
    for (int64_t c = 0; c < all_queries; c += 16) {
      const __m512 logsumexp = _mm512_load_ps(b.logsumexp + c), sums = _mm512_load_ps(b.sums + c);
      const auto half = [&](int64_t row) __attribute__((always_inline)) {
        const int64_t at = row * all_queries + c, key = first_key + row;
        __mmask16 mask = key < a.keys ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>(0);
        if (a.causal)  // key <= first + c + lane
          mask &= _mm512_cmpge_epi32_mask(
              lane, _mm512_set1_epi32(static_cast<int>(std::clamp<int64_t>(key - first - c, 0, 16))));
        __m512 s = _mm512_mul_ps(_mm512_load_ps(b.scores + at), scale);
        if (a.biases) s = _mm512_add_ps(s, _mm512_load_ps(b.bias + at));
        const __m512 w = _mm512_maskz_mov_ps(mask, lane_exp_or_zero(_mm512_sub_ps(s, logsumexp), -87.33f));
        const __m512 g = _mm512_maskz_mul_ps(mask, w, _mm512_sub_ps(_mm512_load_ps(b.grad_weights + at), sums));
        _mm256_store_si256(reinterpret_cast<__m256i*>(b.weights + at), (__m256i)_mm512_cvtneps_pbh(w));
        const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(g);
        _mm256_store_si256(reinterpret_cast<__m256i*>(b.grad_scores + at), rounded);
        return _mm512_cvtepu16_epi32(rounded);
      };
      const __m512i low = half(i), high = half(i + 1);
      _mm512_store_si512(pairs + c, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
}

void store_rows(const float* from, int64_t pitch, int64_t rows, int64_t width, float scale, const Rows& to) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t c = 0; c < width; c += 16)
      store_bf16(reinterpret_cast<uint16_t*>(const_cast<char*>(to.of(i))) + c, first_lanes(width - c),
                 _mm512_mul_ps(_mm512_load_ps(from + i * pitch + c), _mm512_set1_ps(scale)));
}

void one_head(const AttentionBackward& all, int64_t head) {
  const Attention& a = all.forward;
  Buffers b;
  auto* memory = static_cast<char*>(scratch(Buffers::lay_out(a, nullptr, nullptr)));
  Buffers::lay_out(a, memory, &b);
  const int64_t width = up(a.width, 32), value_width = up(a.value_width, 32), all_keys = up(a.keys, kKeys);
  const auto rows = [&](const AttentionOperand& o) { return rows_of(o, a.batch, head, 2); };
  const Rows q = rows(a.q), k = rows(a.k), v = rows(a.v), out = rows(a.out), grad = rows(all.grad);
  const Rows logsumexp = rows_of(a.logsumexp, a.batch, head, 4);
  Rows bias[kMaxBiases];
  for (int n = 0; n < a.biases; ++n) bias[n] = rows_of(a.bias[n], a.batch, head, a.bias_bf16[n] ? 2 : 4);
  configure_tiles();
  copy_rows(k.at, k.stride, a.keys, a.width * 2, reinterpret_cast<char*>(b.keys), width * 2, all_keys);
  copy_rows(v.at, v.stride, a.keys, a.value_width * 2, reinterpret_cast<char*>(b.values), value_width * 2, all_keys);
  take_columns(k, a.keys, a.width, all_keys, width, b.columns);
  if (a.causal) {  // the first queries see some of the keys
    std::fill(b.grad_k, b.grad_k + all_keys * width, 0.f);
    std::fill(b.grad_v, b.grad_v + all_keys * value_width, 0.f);
  }
  const Rows grad_q = rows(all.grad_q);
  for (int64_t first = 0; first < a.queries; first += kQueries) {
    const int64_t queries = std::min(kQueries, a.queries - first), all_queries = up(queries, 32);
    const bool add = a.causal || first > 0;
    transpose_rows(q.of(first), q.stride, queries, a.width * 2, width / 2, all_queries, b.q_columns, all_queries);
    transpose_rows(grad.of(first), grad.stride, queries, a.value_width * 2, value_width / 2, all_queries,
                   b.grad_columns, all_queries);
    copy_pairs(q.of(first), q.stride, queries, a.width, b.q_pairs, width, all_queries);
    copy_pairs(grad.of(first), grad.stride, queries, a.value_width, b.grad_pairs, value_width, all_queries);
    for (int64_t i = 0; i < all_queries; ++i) {
      const float l = i < queries ? *reinterpret_cast<const float*>(logsumexp.of(first + i)) : -INFINITY;
      b.logsumexp[i] = l == -INFINITY ? INFINITY : l;  // no weights
      b.sums[i] = i < queries ? dot(out.of(first + i), grad.of(first + i), a.value_width) : 0.f;
    }
    const int64_t seen = a.causal ? std::min(all_keys, up(first + queries, kKeys)) : all_keys;
    for (int64_t key = 0; key < seen; key += kKeys) {
      product_bf16(b.keys + key * width, width * 2, b.q_columns, all_queries * 4, kKeys, all_queries, width, b.scores,
                   all_queries * 4, false);
      product_bf16(b.values + key * value_width, value_width * 2, b.grad_columns, all_queries * 4, kKeys, all_queries,
                   value_width, b.grad_weights, all_queries * 4, false);
      if (a.biases) gather_bias(a, bias, first, queries, all_queries, key, b);
      weigh(a, first, all_queries, key, b);
      product_bf16(b.weights, all_queries * 2, b.grad_pairs, value_width * 4, kKeys, value_width, all_queries,
                   b.grad_v + key * value_width, value_width * 4, add);
      product_bf16(b.grad_scores, all_queries * 2, b.q_pairs, width * 4, kKeys, width, all_queries,
                   b.grad_k + key * width, width * 4, add);
    }
    for (int64_t d = 0; d < width; d += 32)
      product_bf16(b.columns + d * all_keys, all_keys * 2, b.score_pairs, all_queries * 4, 32, all_queries, seen,
                   b.grad_q + d * all_queries, all_queries * 4, false);
    for (int64_t i = 0; i < queries; i += 16)
      for (int64_t d = 0; d < a.width; d += 16) {
        transpose16(reinterpret_cast<const char*>(b.grad_q + d * all_queries + i), all_queries * 4, 16, 64,
                    reinterpret_cast<uint32_t*>(b.turned), 16);
        store_rows(b.turned, 16, std::min<int64_t>(16, queries - i), std::min<int64_t>(16, a.width - d), a.scale,
                   {grad_q.of(first + i) + d * 2, grad_q.stride});
      }
  }
  _tile_release();
  store_rows(b.grad_k, width, a.keys, a.width, a.scale, rows(all.grad_k));
  store_rows(b.grad_v, value_width, a.keys, a.value_width, 1.f, rows(all.grad_v));
}

}  // namespace

void attention_backward(const AttentionBackward& a) {
  const Batch& batch = a.forward.batch;
  in_parallel(batch[0] * batch[1] * batch[2], [&](int64_t head) { one_head(a, head); });
}

FLASHOVER_AVX512_END

}  // namespace flashover::cpu
