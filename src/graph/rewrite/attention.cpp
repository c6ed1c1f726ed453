// See attention.h; the limits are measured (docs/providers.md).
#include "graph/rewrite/attention.h"

#include <utility>

namespace flashover::graph {

namespace {
// Below so many queries laying out the keys costs more than it saves; from so many keys on ATen's is level.
constexpr int64_t kLeastQueries = 16, kMostKeys = 1536, kMostWidth = 256;
}  // namespace

bool on_cpu(const TensorType& t) { return t.device.type == DeviceType::kCPU && all_const(t.sizes); }
bool dense_last(const TensorType& t) {
  return !t.strides.empty() && (t.strides.back().is_const(1) || t.sizes.back().is_const(1));
}

bool suits_attention(const target::Providers& p, DType dtype, int64_t queries, int64_t keys, int64_t width,
                     int64_t value_width) {
  return (dtype == DType::kF32 ? p.own_f32 : dtype == DType::kBF16 && p.own_bf16) && queries >= kLeastQueries &&
         keys >= kLeastQueries && keys <= kMostKeys && width <= kMostWidth && value_width <= kMostWidth;
}

TensorType heads_inside(TensorType type, sym::Expr width) {
  const size_t rank = type.rank();
  type.sizes.back() = width;
  Sizes turned = type.sizes;
  std::swap(turned[rank - 3], turned[rank - 2]);
  type.strides = contiguous_strides(turned);
  std::swap(type.strides[rank - 3], type.strides[rank - 2]);
  type.offset = 0;
  return type;
}

}  // namespace flashover::graph
