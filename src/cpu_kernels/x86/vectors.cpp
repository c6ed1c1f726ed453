// The best that the processor has.
#include "cpu_kernels/vectors.h"

#include "target/features.h"

namespace flashover::cpu {

const VectorKernels* vector_kernels() {
  static const VectorKernels* const kernels = target::has_feature("avx512") ? &vector_kernels_avx512()
                                              : target::has_feature("avx2") ? &vector_kernels_avx2()
                                                                            : nullptr;
  return kernels;
}

}  // namespace flashover::cpu
