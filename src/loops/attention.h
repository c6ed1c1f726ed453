// flex_attention as a kernel: what its stages make of products of queries and keys decides how a row of values is summed up.
//
// A Kernel with a FlexAttention has three outer loops, over batch, query head and query, and one or two stages of one loop
// over the keys. For each outer point
//
//     r0[j], r1[j], ... := the products of the query (and of whatever lies beside it) with each key, times a scale
//     stage 0 makes the score of it, in r0
//     stage 1, if there is one, puts -inf where the mask is false
//     out := softmax(r0) values; the log of the softmax's sum; the largest score
//
// Keys come in blocks. With lists of blocks, an outer point sees the keys of the blocks that are listed for its block of
// queries; those that are listed as full go without stage 1. So the scratch of an outer point is as long as there are
// keys, and emitters need as much of it as they look at at a time.
//
// Results of rows that see no key are 0, the log of their sum and their largest score -inf.
//
// In a backward the stage makes weights, and the result is their sum over keys, or over queries (Result).
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/types.h"

namespace flashover::loops {

// A parameter, its strides in elements, and where in it the first element is.
struct FlexOperand {
  int32_t slot = -1;  // -1: there is none
  Sizes strides;
  sym::Expr offset = 0;
  bool given() const { return slot >= 0; }
  bool operator==(const FlexOperand&) const = default;
};

struct FlexAttention {
  enum class Result : uint8_t {
    kSoftmax,
    kRows,     // out[query] := the sum of r0[key] values[key], in one stage
    kColumns,  // out[key] := that of r0[key] values[query] over the queries of all heads that share the key's. Lists say
               // which blocks of queries a block of keys is seen by
  };
  Result result = Result::kSoftmax;
  // left [batch, query head, query, width] times right [batch, head, key, width].
  struct Score {
    FlexOperand left, right;
    int64_t width = 0;
    double scale = 1;
    bool operator==(const Score&) const = default;
  };
  // How many blocks of keys a block of queries sees, and which: [batch, query head, rows] and [..., most]. i32.
  struct Blocks {
    FlexOperand counts, indices;
    sym::Expr rows = 0, most = 0;
    bool operator==(const Blocks&) const = default;
  };
  std::vector<Score> scores;  // by scratch
  FlexOperand values;         // [batch, head, key, value width]; kColumns: [batch, query head, query, value width]
  int64_t value_width = 0;
  int64_t group = 1;  // query heads of a head of keys and values
  Blocks partial, full;
  int64_t query_block = 0, key_block = 0;  // 0: no lists, all keys are seen
  FlexOperand out;                         // [batch, query head, query, value width]; kColumns: as keys
  FlexOperand log_sum, largest;            // [batch, query head, query], f32
  bool operator==(const FlexAttention&) const = default;
};

}  // namespace flashover::loops
