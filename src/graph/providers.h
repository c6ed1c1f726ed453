// Which library computes what on this machine. Filled by a probe (run/), cached with the CPU's id; the defaults are
// rules by size that are safe everywhere.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "base/decimal.h"
#include "ops/types.h"

namespace flashover::graph {

enum class Gemm : uint8_t {
  kAten,          // the operator as recorded
  kMklPacked,     // mkl._mkl_linear with a packed weight: f32
  kOneDnn,        // mkldnn._linear_pointwise with the weight as it is
  kOneDnnPacked,  // ... with a packed weight
  kOwnPacked,     // flashover.packed_linear: bf16 with a packed weight
  kOwn,           // flashover.product: both operands packed at each call
};

struct Providers {
  bool mkl = true;           // mkl._mkl_linear exists
  bool onednn = true;        // mkldnn.* exist
  bool onednn_bf16 = false;  // ... and take bf16 (AVX512 or better)
  bool onednn_f16 = false;   // ... and f16
  bool own_f32 = false;      // flashover.attention takes f32 (AVX512) ...
  bool own_bf16 = false;     // ... and it, flashover.packed_linear and product take bf16 (AMX)
  // oneDNN's gradient of a weight of one point, with strides, of images that lie channels last, is right. Its kernel for
  // AVX2 gives other numbers and writes beyond its memory (3.10.2, f32).
  bool onednn_strided_points = true;
  // oneDNN's f32 GEMM speed over MKL's, in steps of a half. 1 on Intel, 2 on AMD.
  double onednn_f32_ratio = 1.0;
  // Rows from which MKL's packed f32 weight is quicker than the plain one (Sapphire Rapids: level at 16, 1.1-1.4x from
  // 32 on, slower below).
  int64_t mkl_packed_rows = 16;
  // Packed copies of weights cost memory: stop at this many bytes a graph.
  int64_t pack_budget = int64_t{4} << 30;
  bool strict_numerics = false;  // keep every rounding that eager does
  bool deterministic = false;    // torch.use_deterministic_algorithms
  // CUDA: threads of the largest grid that eager's random operators use; 0: those stay operators (passes/random.h).
  int64_t random_threads = 0;
};

// Every field, for cache keys.
inline std::string describe(const Providers& p) {
  std::string out;
  for (bool b : {p.mkl, p.onednn, p.onednn_bf16, p.onednn_f16, p.own_f32, p.own_bf16, p.onednn_strided_points,
                 p.strict_numerics, p.deterministic})
    out += b ? '1' : '0';
  return out + " " + fixed_decimal(p.onednn_f32_ratio, 6) + " " + std::to_string(p.mkl_packed_rows) + " " +
         std::to_string(p.pack_budget) + " " + std::to_string(p.random_threads);
}

// How one product lies: rows x inner times inner x columns.
struct ProductSize {
  int64_t rows, inner, columns;
};

// Whether flashover.product, which packs at each call, beats ATen's product (times: docs/benchmarks/libraries.md).
// f32: us of one core for blocks of 32, multiplied, finished and packed, against 160 GF/s of its f32 unit. bf16: 1 to
// 1.8 times oneDNN's speed (whose caller copies transposed matrices, and takes 15 us before it begins), but for few
// rows, and where much is padded.
inline bool suits_product(const Providers& p, DType dtype, const ProductSize& size) {
  if (!p.own_bf16 || p.strict_numerics || size.rows <= 0 || size.inner <= 0 || size.columns <= 0) return false;
  const auto blocks = [](int64_t n) { return static_cast<double>((n + 31) / 32); };
  const double m = blocks(size.rows), k = blocks(size.inner), n = blocks(size.columns);
  const double flops =
      2.0 * static_cast<double>(size.rows) * static_cast<double>(size.inner) * static_cast<double>(size.columns);
  if (dtype == DType::kBF16)
    return size.rows >= 24 && size.inner >= 16 && size.columns >= 16 && m * k * n * 65536 < 2.2 * flops;
  if (dtype != DType::kF32 || flops < 2e6) return false;
  constexpr double kMultiply = 0.185, kFinish = 0.15, kPackColumns = 0.5, kPackRows = 0.25, kLibrary = 160e3;
  const double group = std::max(1.0, std::min(16.0, std::floor(150 / std::min(k, 24.0))));
  const double own =
      m * n * (kMultiply * k + kFinish) + kPackColumns * n * k + kPackRows * m * k * std::ceil(n / group);
  return flops / kLibrary > 1.1 * own;
}

// rows x inner times inner x columns. frozen_weight: packing is possible.
inline Gemm choose_gemm(const Providers& p, DType dtype, std::optional<int64_t> rows, int64_t inner, int64_t columns,
                        bool frozen_weight) {
  const double flops =
      2.0 * static_cast<double>(rows.value_or(1)) * static_cast<double>(inner) * static_cast<double>(columns);
  constexpr double kWorthACall = 2e6;  // below, the operator's fixed cost decides
  if (!rows || *rows == 0 || inner == 0 || columns == 0) return Gemm::kAten;
  if (dtype == DType::kF32) {
    if (p.onednn && p.onednn_f32_ratio > 1.15 && flops >= kWorthACall)
      return frozen_weight && *rows > 1 ? Gemm::kOneDnnPacked : Gemm::kOneDnn;
    if (p.mkl && frozen_weight && *rows >= p.mkl_packed_rows && flops >= kWorthACall) return Gemm::kMklPacked;
    return Gemm::kAten;
  }
  const bool reduced = (dtype == DType::kBF16 && p.onednn_bf16) || (dtype == DType::kF16 && p.onednn_f16);
  // Level with oneDNN where the product is large; a call costs 2 us, not 15.
  if (dtype == DType::kBF16 && p.own_bf16 && frozen_weight && (*rows <= 16 || flops <= 4e7)) return Gemm::kOwnPacked;
  // ATen's own path is oneDNN too, with a conversion of the weight and bias more per call (1.3-1.5x).
  if (reduced && p.onednn && flops >= kWorthACall / 4) return frozen_weight ? Gemm::kOneDnnPacked : Gemm::kOneDnn;
  return Gemm::kAten;
}

// One group of a convolution: channels, points of the kernel and of the result.
struct ConvolutionFacts {
  int64_t in, out, groups, taps, points, batch;
  int64_t reach;  // points of the image between the first and the last that a result reads
  bool strided;
};
// Which of its three products flashover.convolution and its gradients compute; the rest is oneDNN's.
struct OwnConvolution {
  bool forward = false, input = false, weight = false;
  bool unfolded = false;  // all three as products over rows of what each result reads, images channels last
};
inline OwnConvolution choose_convolution(const Providers& p, DType dtype, const ConvolutionFacts& c) {
  // (What a thread keeps of the image grows with these.)
  if ((dtype != DType::kF32 && dtype != DType::kBF16) || c.reach > 8192 || c.points > 1 << 18) return {};
  const bool f32 = dtype == DType::kF32;
  if (c.groups > 1 && c.in == 1 && c.out == 1) {  // oneDNN's gradients of larger kernels' weights run at 2 GF/s
    const bool small = c.taps <= 9 && c.points >= 400;
    return p.own_f32 && c.points <= 1 << 16
               ? OwnConvolution{f32 && small, small || (!f32 && c.strided), small || c.taps > 9}
               : OwnConvolution{};
  }
  const double work = 2.0 * static_cast<double>(c.in * c.out * c.taps) * static_cast<double>(c.points * c.batch);
  if (!p.own_bf16 || c.in < 16 || c.out < 16 || work < 2e6) return {};
  // bf16 and few points: all time goes into reading the weight, which products do best.
  if (!f32 && c.taps > 1 && c.taps <= 64 && c.points * c.batch <= 256 && c.in * c.taps * c.out >= 1 << 19)
    return {true, true, true, c.groups == 1};
  // bf16: oneDNN reaches 1,000 GF/s on large images that lie channels last, 100 to 300 on small ones.
  if (!f32) return {c.taps > 1 && c.points <= 64, c.taps > 1 && c.points <= 64, c.taps > 1 && c.points <= 256};
  return {true, true, c.taps > 1 || (c.in >= 64 && c.out >= 64)};
}

}  // namespace flashover::graph
