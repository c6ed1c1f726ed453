// Products: tiles of 6 rows and one panel: 24 sums, the panel's line and an element of the rows are 29 of 32 registers.
#include "cpu_kernels/vectors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu_kernels/aarch64/lanes.h"
#include "target/features.h"

namespace flashover::cpu {
namespace neon {
namespace {

constexpr int kLanes = 4, kRows = 6;
inline Vec load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, Vec x) { vst1q_f32(p, x); }
inline Vec load_first(const float* p, int64_t n) {
  float part[kLanes] = {};
  std::memcpy(part, p, static_cast<size_t>(std::clamp<int64_t>(n, 0, kLanes)) * 4);
  return vld1q_f32(part);
}
inline void store_first(float* p, Vec x, int64_t n) {
  float part[kLanes];
  vst1q_f32(part, x);
  std::memcpy(p, part, static_cast<size_t>(std::clamp<int64_t>(n, 0, kLanes)) * 4);
}

struct Mask {
  int64_t lanes;
};
inline Mask mask_of(int64_t n) { return {n}; }
inline Vec load_part(const float* p, const Mask& mask) {
  return mask.lanes >= kLanes ? load(p) : load_first(p, mask.lanes);
}

#include "cpu_kernels/depthwise_kernel.h"
#include "cpu_kernels/panels_kernel.h"
#include "cpu_kernels/recurrent_kernel.h"
// Last: it takes their addresses.
#include "cpu_kernels/vector_table.h"

}  // namespace
}  // namespace neon

const VectorKernels* vector_kernels() {
  static const VectorKernels kernels = neon::make_vector_kernels();
  return target::has_feature("neon") ? &kernels : nullptr;
}

}  // namespace flashover::cpu
