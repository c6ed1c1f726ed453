// Renews the twister's words and tempers them 16 at a time.
#include "cpu_kernels/random.h"

#include <algorithm>
#include <cstring>

// Last: the rest of the file is for AVX512.
#include "cpu_kernels/x86/lanes.h"

namespace flashover::cpu {

FLASHOVER_AVX512_BEGIN
namespace {

constexpr int kAhead = 397;  // the word that is mixed in

uint32_t twist(uint32_t a, uint32_t b) {
  return ((((a & 0x80000000u) | (b & 0x7fffffffu)) >> 1)) ^ (b & 1 ? 0x9908b0dfu : 0u);
}

// words[i] for i in [first, last), from words[i], words[i + 1] and words[i + from].
void renew_range(uint32_t* words, int first, int last, int from) {
  int i = first;
  for (; i + 16 <= last; i += 16) {
    const __m512i a = _mm512_loadu_si512(words + i), b = _mm512_loadu_si512(words + i + 1);
    const __m512i mixed = _mm512_ternarylogic_epi32(_mm512_set1_epi32(INT32_MIN), a, b, 0xca);  // bits of a, else of b
    const __m512i odd =
        _mm512_maskz_set1_epi32(_mm512_test_epi32_mask(b, _mm512_set1_epi32(1)), static_cast<int>(0x9908b0dfu));
    const __m512i c = _mm512_loadu_si512(words + i + from);
    _mm512_storeu_si512(words + i, _mm512_xor_si512(_mm512_xor_si512(c, odd), _mm512_srli_epi32(mixed, 1)));
  }
  for (; i < last; ++i) words[i] = words[i + from] ^ twist(words[i], words[i + 1]);
}

void renew(uint32_t* words) {
  constexpr int n = Twister::kWords;
  renew_range(words, 0, n - kAhead, kAhead);
  renew_range(words, n - kAhead, n - 1, kAhead - n);
  words[n - 1] = words[kAhead - 1] ^ twist(words[n - 1], words[0]);
}

__m512i mix(__m512i y, __m512i shifted, uint32_t mask) {
  return _mm512_xor_si512(y, _mm512_and_si512(shifted, _mm512_set1_epi32(static_cast<int>(mask))));
}
__m512i temper(__m512i y) {
  y = _mm512_xor_si512(y, _mm512_srli_epi32(y, 11));
  y = mix(y, _mm512_slli_epi32(y, 7), 0x9d2c5680u);
  y = mix(y, _mm512_slli_epi32(y, 15), 0xefc60000u);
  return _mm512_xor_si512(y, _mm512_srli_epi32(y, 18));
}

// Eight numbers' bits.
__mmask8 below(const uint32_t* words, __m512i limit) {
  const __m512i pair = temper(_mm512_loadu_si512(words));
  const __m512i number = _mm512_and_si512(_mm512_ror_epi64(pair, 32), _mm512_set1_epi64((int64_t{1} << 53) - 1));
  return _mm512_cmplt_epu64_mask(number, limit);
}

void store(char* out, int element, uint32_t one, __mmask16 found, __mmask16 here) {
  if (element == 4)
    _mm512_mask_storeu_epi32(out, here, _mm512_maskz_set1_epi32(found, static_cast<int>(one)));
  else if (element == 2)
    _mm256_mask_storeu_epi16(out, here, _mm256_maskz_set1_epi16(found, static_cast<short>(one)));
  else
    _mm_mask_storeu_epi8(out, here, _mm_maskz_set1_epi8(found, static_cast<char>(one)));
}

}  // namespace

void draw_below(Twister& t, uint64_t limit, int64_t n, void* out, int element, uint32_t one) {
  const __m512i limits = _mm512_set1_epi64(static_cast<int64_t>(limit));
  auto* to = static_cast<char*>(out);
  alignas(64) uint32_t joined[32];
  while (n > 0) {
    // 16 numbers lie in this block's words, or are put together.
    const uint32_t* words = t.words + t.used;
    const int64_t here = std::min<int64_t>(n, 16), needed = 2 * here;
    if (t.used + 32 <= Twister::kWords) {
      t.used += static_cast<int>(needed);
    } else {
      for (int64_t got = 0; got < needed;) {
        if (t.used == Twister::kWords) {
          renew(t.words);
          t.used = 0;
        }
        const int64_t some = std::min<int64_t>(needed - got, Twister::kWords - t.used);
        std::memcpy(joined + got, t.words + t.used, static_cast<size_t>(some) * 4);
        t.used += static_cast<int>(some);
        got += some;
      }
      words = joined;
    }
    const auto found = static_cast<__mmask16>(below(words, limits) | below(words + 16, limits) << 8);
    const __mmask16 mask = first_lanes(here);
    store(to, element, one, found & mask, mask);
    to += here * element;
    n -= here;
  }
}

FLASHOVER_AVX512_END

}  // namespace flashover::cpu
