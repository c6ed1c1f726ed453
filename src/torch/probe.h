// Measures, once per process, which library computes what faster on this machine.
#pragma once

namespace flashover::aten {

// oneDNN's f32 GEMM speed over MKL's, coarse on purpose (1 or 2: it is part of cache keys). Measured only where the answer
// is open, a few milliseconds; MKL and oneDNN are level on Intel's CPUs.
double onednn_f32_ratio();

}  // namespace flashover::aten
