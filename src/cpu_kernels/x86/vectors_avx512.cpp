// Products: tiles of 14 rows and two panels: 28 sums, the panels' lines and an element of the rows are 31 of 32 registers.
#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu_kernels/vectors.h"
// Last: the rest of the file is for AVX512.
#include "cpu_kernels/x86/lanes.h"

namespace flashover::cpu {
namespace avx512 {

FLASHOVER_AVX512_BEGIN
namespace {

constexpr int kLanes = 16, kRows = 14;
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
inline Vec load_first(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
inline void store_first(float* p, Vec x, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }

using Mask = __mmask16;
inline Mask mask_of(int64_t n) { return first_lanes(n); }
inline Vec load_part(const float* p, Mask mask) { return _mm512_maskz_loadu_ps(mask, p); }

#include "cpu_kernels/depthwise_kernel.h"
#include "cpu_kernels/panels_kernel.h"
#include "cpu_kernels/recurrent_kernel.h"
// Last: it takes their addresses.
#include "cpu_kernels/vector_table.h"

}  // namespace
FLASHOVER_AVX512_END

}  // namespace avx512

const VectorKernels& vector_kernels_avx512() {
  static const VectorKernels kernels = avx512::make_vector_kernels();
  return kernels;
}

}  // namespace flashover::cpu
