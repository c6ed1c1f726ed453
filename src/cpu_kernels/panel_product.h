// activation(a b + added) on f32 matrices with the processor's vectors, nothing packed beforehand (product.h has the
// same for the AMX unit): products of training, and of weights of which no copy is kept.
//
// Each task packs a block of b at a time, as many panels (panels.h) as stay in L2 with the rows that pass, and where
// they do not lie as they are read a few rows of a. Sums are made in chunks of kInnerChunk, whatever the division into
// tasks, so that a result does not depend on the number of threads.
#pragma once
#include "cpu_kernels/product.h"

namespace flashover::cpu {

void panel_product(const ProductOf<float>& p);  // vector_kernels() must be there

}  // namespace flashover::cpu
