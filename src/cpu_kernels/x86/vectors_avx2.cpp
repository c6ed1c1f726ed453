// Products: tiles of 6 rows and one panel: 12 sums, two parts of the panel's line and an element of the rows fill 16 registers.
#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu_kernels/vectors.h"
// Last: the rest of the file is for AVX2.
#include "cpu_kernels/x86/lanes_avx2.h"

namespace flashover::cpu {
namespace avx2 {

FLASHOVER_AVX2_BEGIN
namespace {

constexpr int kLanes = 8, kRows = 6;
inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
inline __m256i first_of(int64_t n) {
  const __m256i lanes = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lanes);
}
inline Vec load_first(const float* p, int64_t n) { return _mm256_maskload_ps(p, first_of(n)); }
inline void store_first(float* p, Vec x, int64_t n) { _mm256_maskstore_ps(p, first_of(n), x); }

struct Mask {
  __m256i lanes;
  bool whole;
};
inline Mask mask_of(int64_t n) { return {first_of(std::min<int64_t>(n, kLanes)), n >= kLanes}; }
inline Vec load_part(const float* p, const Mask& mask) {
  return mask.whole ? load(p) : _mm256_maskload_ps(p, mask.lanes);
}

#include "cpu_kernels/depthwise_kernel.h"
#include "cpu_kernels/panels_kernel.h"
#include "cpu_kernels/recurrent_kernel.h"
// Last: it takes their addresses.
#include "cpu_kernels/vector_table.h"

}  // namespace
FLASHOVER_AVX2_END

}  // namespace avx2

const VectorKernels& vector_kernels_avx2() {
  static const VectorKernels kernels = avx2::make_vector_kernels();
  return kernels;
}

}  // namespace flashover::cpu
