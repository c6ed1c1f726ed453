// softmax(scale q k^T + biases) v for many heads, in blocks of queries and keys that stay in the cache: the scores are
// never in memory as a whole.
//
// f32 with AVX512; bf16 with AMX, where scores and sums are f32 and the weights are rounded to bf16 before they meet v,
// as in ATen's flash attention. Weights below 1e-38 count as 0.
#pragma once
#include <array>
#include <cstdint>

namespace flashover::cpu {

bool has_avx512();

constexpr int kBatchDims = 3, kMaxBiases = 2;
using Batch = std::array<int64_t, kBatchDims>;

// Strides in elements; 0 where a tensor repeats. The last dim of each is dense.
struct AttentionOperand {
  const void* data = nullptr;
  Batch batch{};
  int64_t row = 0;
};
struct Attention {
  bool bf16 = false;  // q, k, v and out; else f32
  AttentionOperand q, k, v, out;
  AttentionOperand logsumexp;  // [queries] of each head, f32: what a backward needs; null: not computed
  AttentionOperand bias[kMaxBiases];
  bool bias_bf16[kMaxBiases] = {};
  int biases = 0;
  Batch batch{1, 1, 1};
  int64_t queries = 0, keys = 0, width = 0, value_width = 0;
  float scale = 1;
  bool causal = false;        // query i sees keys 0..i
  bool zero_if_none = false;  // a query whose scores are all -inf gives 0, not NaN
};
void attention(const Attention& a);

// Gradients of q, k and v (bf16), from those of `forward.out` and what the forward left: weights are computed again.
// Queries without a weight give nothing.
struct AttentionBackward {
  Attention forward;  // all operands as they were
  AttentionOperand grad, grad_q, grad_k, grad_v;
};
void attention_backward(const AttentionBackward& a);

}  // namespace flashover::cpu
