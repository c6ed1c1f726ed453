// The operators that take any numbers without raising: all others may raise.
#include <algorithm>

#include "ops/names.h"
#include "plan/plan.h"

namespace flashover::plan {
namespace {

// One overload of each; the others, and those that write in place, are alike.
constexpr std::string_view kNever[] = {
    op::_softmax,
    op::_to_copy,
    op::add_Scalar,
    op::addbmm,
    op::addmm,
    op::addmv,
    op::argsort,
    op::avg_pool1d,
    op::avg_pool2d,
    op::avg_pool3d,
    op::baddbmm,
    op::bmm,
    op::cat,
    op::clone,
    op::constant_pad_nd,
    op::contiguous,
    op::convolution,
    op::convolution_backward,
    op::copy,
    op::cummax,
    op::cummin,
    op::cumprod,
    op::cumsum,
    op::dot,
    op::max_pool2d_with_indices,
    op::max_pool3d_with_indices,
    op::mkldnn_convolution,
    op::mkldnn_linear,
    op::mkldnn_rnn_layer,
    op::mm,
    op::mul_Scalar,
    op::mv,
    op::native_batch_norm,
    op::native_batch_norm_backward,
    op::native_dropout,
    op::native_group_norm,
    op::native_layer_norm,
    op::rand,
    op::rand_like,
    op::randint,
    op::randn,
    op::randn_like,
    op::scaled_dot_product_attention,
    op::sort,
    op::topk,
    op::upsample_bilinear2d,
    op::zero,
};

// "aten.add" of "aten.add.Tensor" and of "aten.add_.Tensor".
constexpr std::string_view family(std::string_view name) {
  name = op::without_overload(name);
  if (name.ends_with('_')) name.remove_suffix(1);
  return name;
}

}  // namespace

bool may_raise(std::string_view op) {
  if (op.starts_with("flashover.") || op.starts_with("mkldnn.")) return false;
  if (op.starts_with("functional.")) op.remove_prefix(11);
  if (op.starts_with("aten._scaled_dot_product")) return false;
  return std::none_of(std::begin(kNever), std::end(kNever),
                      [&](std::string_view never) { return family(never) == family(op); });
}

}  // namespace flashover::plan
