// Costs of libraries, as formulas over sizes (times: docs/benchmarks/libraries.md).
#include "target/providers.h"

#include <algorithm>
#include <cmath>

#include "base/decimal.h"

namespace flashover::target {

std::string describe(const Providers& p) {
  std::string out;
  for (bool b : {p.mkl, p.onednn, p.onednn_bf16, p.onednn_f16, p.slow_bf16, p.slow_f16, p.own_f32, p.own_bf16,
                 p.split_f32, p.panels, p.quick_panels, p.onednn_strided_points, p.strict_numerics, p.eagers_bits,
                 p.batch_invariant, p.deterministic})
    out += b ? '1' : '0';
  return out + " " + fixed_decimal(p.onednn_f32_ratio, 6) + " " + std::to_string(p.mkl_packed_rows) + " " +
         std::to_string(p.pack_budget) + " " + std::to_string(p.random_threads);
}

bool suits_product(const Providers& p, DType dtype, const ProductSize& size) {
  if (!p.own_bf16 || p.strict_numerics || size.rows <= 0 || size.inner <= 0 || size.columns <= 0) return false;
  const auto blocks = [](int64_t n) { return static_cast<double>((n + 31) / 32); };
  const double m = blocks(size.rows), k = blocks(size.inner), n = blocks(size.columns);
  const double flops =
      2.0 * static_cast<double>(size.rows) * static_cast<double>(size.inner) * static_cast<double>(size.columns);
  if (dtype == DType::kBF16)
    return size.rows >= 24 && size.inner >= 16 && size.columns >= 16 && m * k * n * 65536 < 2.2 * flops;
  if (dtype != DType::kF32 || !p.split_f32 || flops < 2e6) return false;
  constexpr double kMultiply = 0.185, kFinish = 0.15, kPackColumns = 0.5, kPackRows = 0.25, kLibrary = 160e3;
  const double group = std::max(1.0, std::min(16.0, std::floor(150 / std::min(k, 24.0))));
  const double own =
      m * n * (kMultiply * k + kFinish) + kPackColumns * n * k + kPackRows * m * k * std::ceil(n / group);
  return flops / kLibrary > 1.1 * own;
}

static bool takes_unpacked(const Providers& p, DType dtype) {
  return multiplies_by_vectors(p, dtype) && p.panels && !p.strict_numerics;
}

bool suits_unpacked(const Providers& p, DType dtype, const ProductSize& size, bool columns_lie_dense, bool frozen) {
  constexpr int64_t kFew = 4, kColumns = 32, kInner = 64;
  if (!takes_unpacked(p, dtype) || size.inner < kInner) return false;
  if (size.rows <= kFew) return columns_lie_dense;
  if (suits_unpacked_rows(p, dtype, size.inner, size.columns, columns_lie_dense)) return true;
  // MKL's product is the quicker one for the orders that gradients have (AVX512: 1.15x), ours for the other.
  const int64_t many = frozen ? 128 : 64;
  return p.quick_panels && (frozen || columns_lie_dense) && size.rows >= many && size.columns >= kColumns;
}

bool suits_unpacked_rows(const Providers& p, DType dtype, int64_t inner, int64_t columns, bool columns_lie_dense) {
  constexpr int64_t kColumns = 32, kInner = 256;
  return takes_unpacked(p, dtype) && p.quick_panels && columns_lie_dense && inner >= kInner && columns >= kColumns;
}

bool suits_panels(const Providers& p, DType dtype, int64_t rows) {
  constexpr int64_t kFew = 8;  // the time is reading the weight, which lies as it is read
  return dtype == DType::kF32 && p.panels && (rows <= kFew || p.quick_panels);
}

Gemm choose_gemm(const Providers& p, DType dtype, int64_t rows, int64_t inner, int64_t columns, bool frozen_weight) {
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(inner) * static_cast<double>(columns);
  constexpr double kWorthACall = 2e6;  // below, the operator's fixed cost decides
  if (rows == 0 || inner == 0 || columns == 0) return Gemm::kAten;
  if (dtype == DType::kF32) {
    constexpr double kWorthPacking = 1e5;
    if (frozen_weight && flops >= kWorthPacking && suits_panels(p, dtype, rows)) return Gemm::kOwnPanels;
    if (p.onednn && p.onednn_f32_ratio > 1.15 && flops >= kWorthACall)
      return frozen_weight && rows > 1 ? Gemm::kOneDnnPacked : Gemm::kOneDnn;
    if (p.mkl && frozen_weight && rows >= p.mkl_packed_rows && flops >= kWorthACall) return Gemm::kMklPacked;
    return Gemm::kAten;
  }
  const bool reduced = (dtype == DType::kBF16 && p.onednn_bf16) || (dtype == DType::kF16 && p.onednn_f16);
  // Level with oneDNN where the product is large; a call costs 2 us, not 15.
  if (dtype == DType::kBF16 && p.own_bf16 && frozen_weight && (rows <= 16 || flops <= 4e7)) return Gemm::kOwnPacked;
  // ATen's own path is oneDNN too, with a conversion of the weight and bias more per call (1.3-1.5x).
  if (reduced && p.onednn && flops >= kWorthACall / 4) return frozen_weight ? Gemm::kOneDnnPacked : Gemm::kOneDnn;
  return Gemm::kAten;
}

OwnConvolution choose_convolution(const Providers& p, DType dtype, const ConvolutionFacts& c) {
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
  if (!(f32 ? p.split_f32 : p.own_bf16) || c.in < 16 || c.out < 16 || work < 2e6) return {};
  // bf16 and few points: all time goes into reading the weight, which products do best.
  if (!f32 && c.taps > 1 && c.taps <= 64 && c.points * c.batch <= 256 && c.in * c.taps * c.out >= 1 << 19)
    return {true, true, true, c.groups == 1};
  // bf16: oneDNN reaches 1,000 GF/s on large images that lie channels last, 100 to 300 on small ones.
  if (!f32) return {c.taps > 1 && c.points <= 64, c.taps > 1 && c.points <= 64, c.taps > 1 && c.points <= 256};
  return {true, true, c.taps > 1 || (c.in >= 64 && c.out >= 64)};
}

}  // namespace flashover::target
