// The operators that take any numbers without raising: all others may raise.
#include <algorithm>

#include "plan/plan.h"

namespace flashover::plan {

bool may_raise(std::string_view op) {
  static constexpr std::string_view kNever[] = {
      "aten._softmax",
      "aten._to_copy",
      "aten.add",
      "aten.addbmm",
      "aten.addmm",
      "aten.addmv",
      "aten.argsort",
      "aten.avg_pool1d",
      "aten.avg_pool2d",
      "aten.avg_pool3d",
      "aten.baddbmm",
      "aten.bmm",
      "aten.cat",
      "aten.clone",
      "aten.constant_pad_nd",
      "aten.contiguous",
      "aten.convolution",
      "aten.convolution_backward",
      "aten.copy",
      "aten.cummax",
      "aten.cummin",
      "aten.cumprod",
      "aten.cumsum",
      "aten.dot",
      "aten.fill",
      "aten.max_pool2d_with_indices",
      "aten.max_pool3d_with_indices",
      "aten.mkldnn_convolution",
      "aten.mkldnn_linear",
      "aten.mkldnn_rnn_layer",
      "aten.mm",
      "aten.mul",
      "aten.mv",
      "aten.native_batch_norm",
      "aten.native_batch_norm_backward",
      "aten.native_dropout",
      "aten.native_group_norm",
      "aten.native_layer_norm",
      "aten.rand",
      "aten.rand_like",
      "aten.randint",
      "aten.randn",
      "aten.randn_like",
      "aten.scaled_dot_product_attention",
      "aten.sort",
      "aten.topk",
      "aten.upsample_bilinear2d",
      "aten.zero",
  };
  if (op.starts_with("flashover.") || op.starts_with("mkldnn.")) return false;
  if (op.starts_with("functional.")) op.remove_prefix(11);
  if (op.starts_with("aten._scaled_dot_product")) return false;
  op = op.substr(0, op.rfind('.'));
  if (op.ends_with('_')) op.remove_suffix(1);
  return std::find(std::begin(kNever), std::end(kNever), op) == std::end(kNever);
}

}  // namespace flashover::plan
