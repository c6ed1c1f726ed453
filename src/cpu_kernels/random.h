// The numbers of torch's generator on the CPU (a Mersenne twister) by vectors: the same ones, in the same order.
#pragma once
#include <cstdint>

namespace flashover::cpu {

struct Twister {
  static constexpr int kWords = 624;
  uint32_t* words;  // kWords
  int used;         // of them
};

// n times whether a number of 53 bits (of two words, the first one above) is below `limit`: 1 or 0 in `out`, which has
// `element` bytes each. `one` is how 1 looks. Needs AVX512.
void draw_below(Twister& t, uint64_t limit, int64_t n, void* out, int element, uint32_t one);

}  // namespace flashover::cpu
