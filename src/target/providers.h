// Which library computes what on this machine. Filled by a probe (run/), cached with the CPU's id; the defaults are
// rules by size that are safe everywhere.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "ops/types.h"

namespace flashover::target {

enum class Gemm : uint8_t {
  kAten,          // the operator as recorded
  kMklPacked,     // mkl._mkl_linear with a packed weight: f32
  kOneDnn,        // mkldnn._linear_pointwise with the weight as it is
  kOneDnnPacked,  // ... with a packed weight
  kOwnPacked,     // flashover.packed_linear: bf16 with a packed weight
  kOwnPanels,     // flashover.panel_linear: f32 with a packed weight
  kOwn,           // flashover.product: both operands packed at each call
};

struct Providers {
  bool mkl = true;           // mkl._mkl_linear exists
  bool onednn = true;        // mkldnn.* exist
  bool onednn_bf16 = false;  // ... and take bf16 (AVX512 or better)
  bool onednn_f16 = false;   // ... and f16
  bool slow_bf16 = false;    // products of bf16 take much longer than of f32 (no instructions for them) ...
  bool slow_f16 = false;     // ... of f16
  bool own_f32 = false;      // flashover.attention takes f32 (AVX512) ...
  bool own_bf16 = false;     // ... and it, flashover.packed_linear and product take bf16 (AMX)
  // With the AMX unit, f32 products and convolutions in the bf16x3 split are quicker than the libraries' (measured: the
  // unit has a third of its speed where a neighbour keeps the core busy). Else f32 is as on machines without it.
  bool split_f32 = false;
  // oneDNN's gradient of a weight of one point, with strides, of images that lie channels last, is right. Its kernel for
  // AVX2 gives other numbers and writes beyond its memory (3.10.2, f32).
  bool onednn_strided_points = true;
  bool panels = false;        // flashover.panel_linear and depthwise_last take f32 (AVX2) ...
  bool quick_panels = false;  // ... and the products are as quick as the libraries'
  // oneDNN's f32 GEMM speed over MKL's, in steps of a half. 1 on Intel, 2 on AMD.
  double onednn_f32_ratio = 1.0;
  // Rows from which MKL's packed f32 weight is quicker than the plain one (Sapphire Rapids: level at 16, 1.1-1.4x from
  // 32 on, slower below).
  int64_t mkl_packed_rows = 16;
  // Copies of weights cost memory: each pass that makes some stops at this many bytes a graph (option weight_copies).
  int64_t pack_budget = int64_t{4} << 30;
  bool strict_numerics = false;  // keep every rounding that eager does
  bool eagers_bits = false;      // and every order of its sums: only what means one computation is ours
  // A row has the same bits in a batch of any size: no choice depends on how many there are (row_by_row).
  bool batch_invariant = false;
  bool deterministic = false;  // torch.use_deterministic_algorithms
  // CUDA: threads of the largest grid that eager's random operators use; 0: those stay operators (lower_random).
  int64_t random_threads = 0;
};

// Every field, for cache keys.
std::string describe(const Providers& p);

// How one product lies: rows x inner times inner x columns.
struct ProductSize {
  int64_t rows, inner, columns;
};

// Whether flashover.product, which packs at each call, beats ATen's product (times: docs/benchmarks/libraries.md). With
// the AMX unit:
// f32: us of one core for blocks of 32, multiplied, finished and packed, against 160 GF/s of its f32 unit. bf16: 1 to
// 1.8 times oneDNN's speed (whose caller copies transposed matrices, and takes 15 us before it begins), but for few
// rows, and where much is padded.
bool suits_product(const Providers& p, DType dtype, const ProductSize& size);

// Without the AMX unit, whether flashover.product is as quick, or nearly, as one with a packed copy of b (frozen: there
// may be one), or as the libraries' (else): of many rows, beside which packing b in each call is little, and of any where
// b's columns lie one behind the other and are long enough to be multiplied as they lie.
bool suits_unpacked(const Providers& p, DType dtype, const ProductSize& size, bool columns_lie_dense, bool frozen);
bool suits_unpacked_rows(const Providers& p, DType dtype, int64_t inner, int64_t columns,
                         bool columns_lie_dense);  // of any number, which may be a symbol

// Whether the products of flashover.product are the vectors', also where there is an AMX unit.
inline bool multiplies_by_vectors(const Providers& p, DType dtype) { return dtype == DType::kF32 && !p.split_f32; }

// Whether flashover.panel_linear is as quick as the libraries for so many rows.
bool suits_panels(const Providers& p, DType dtype, int64_t rows);

// rows x inner times inner x columns. frozen_weight: packing is possible.
Gemm choose_gemm(const Providers& p, DType dtype, int64_t rows, int64_t inner, int64_t columns, bool frozen_weight);

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
OwnConvolution choose_convolution(const Providers& p, DType dtype, const ConvolutionFacts& c);

}  // namespace flashover::target
