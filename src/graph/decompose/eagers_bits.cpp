// The list of such operators; whole numbers need none.
#include "graph/decompose/eagers_bits.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <unordered_set>

#include "ops/floats.h"
#include "ops/names.h"

namespace flashover::graph {
namespace {

#define COMPARISON(name) "aten." #name ".Tensor", "aten." #name ".Scalar"
// Rounded once, or not at all.
constexpr const char* kExact[] = {
    op::ceil, op::floor, op::round, op::trunc, op::neg, op::sign, op::sgn, op::abs, op::relu, op::logical_not,
    op::isnan, op::isinf, op::isneginf, op::isposinf, op::signbit, op::nan_to_num, op::hardtanh, op::mul_Tensor,
    op::mul_Scalar, op::div_Tensor, op::div_Scalar, op::maximum, op::minimum, op::fmax, op::fmin, op::copysign_Tensor,
    op::copysign_Scalar, op::logical_and, op::logical_or, op::logical_xor, op::clamp, op::clamp_Tensor, op::clamp_min,
    op::clamp_min_Tensor, op::clamp_max, op::clamp_max_Tensor, op::where_self, op::where_ScalarOther,
    op::where_ScalarSelf, op::where_Scalar, op::masked_fill_Scalar, op::masked_fill_Tensor, COMPARISON(eq),
    COMPARISON(ne), COMPARISON(lt), COMPARISON(le), COMPARISON(gt), COMPARISON(ge),
    // Values that move.
    op::_to_copy, op::number, op::alias, op::alias_copy, op::clone, op::copy, op::detach, op::detach_copy,
    op::empty_like, op::empty_memory_format, op::empty_permuted, op::empty_strided, op::eye, op::eye_m, op::fill_Scalar,
    op::fill_Tensor, op::full, op::full_like, op::lift_fresh, op::lift_fresh_copy, op::new_empty, op::new_empty_strided,
    op::new_full, op::new_ones, op::new_zeros, op::ones, op::ones_like, op::scalar_tensor, op::tril, op::triu, op::zero,
    op::zeros, op::zeros_like, op::_unsafe_index_Tensor, op::cat, op::constant_pad_nd, op::embedding, op::gather,
    op::index_Tensor, op::index_select, op::stack, op::_unsafe_view, op::as_strided, op::channel_shuffle, op::diagonal,
    op::diagonal_copy, op::expand, op::expand_copy, op::flip, op::native_channel_shuffle, op::permute, op::permute_copy,
    op::pixel_shuffle, op::pixel_unshuffle, op::repeat, op::reshape, op::roll, op::rot90, op::select_copy_int,
    op::select_int, op::select_scatter, op::slice_Tensor, op::slice_copy_Tensor, op::slice_scatter, op::split_Tensor,
    op::split_with_sizes, op::squeeze, op::squeeze_copy, op::squeeze_copy_dim, op::squeeze_copy_dims, op::squeeze_dim,
    op::squeeze_dims, op::t, op::t_copy, op::transpose_copy_int, op::transpose_int, op::unbind_int, op::unfold,
    op::unsafe_split_Tensor, op::unsafe_split_with_sizes, op::unsqueeze, op::unsqueeze_copy, op::view, op::view_copy,
    // One of them is chosen.
    op::all, op::all_dim, op::all_dims, op::any, op::any_dim, op::any_dims, op::amax, op::amin, op::argmax, op::argmin,
    op::max, op::max_dim, op::min, op::min_dim};
#undef COMPARISON
// The same where their alpha is 1 (else ATen's vectors round a product and a sum at once), and of 16-bit floats where no
// number is among the operands, which ATen rounds to 16 bits first.
constexpr const char* kSums[] = {op::add_Tensor,  op::add_Scalar,  op::sub_Tensor, op::sub_Scalar,
                                 op::rsub_Tensor, op::rsub_Scalar, op::threshold};

// Of floats on a GPU: its compiler contracts a product with the sum behind it, and ATen divides by numbers otherwise.
constexpr const char* kProductsOfEager[] = {op::mul_Tensor, op::mul_Scalar, op::div_Tensor, op::div_Scalar};

template <size_t n>
bool is_among(const char* const (&names)[n], std::string_view name) {
  static const std::unordered_set<std::string_view> set(std::begin(names), std::end(names));
  return set.contains(name);
}

bool is_one(const Arg& a) {
  if (const auto* e = std::get_if<sym::Expr>(&a)) return e->is_const(1);
  if (const auto* d = std::get_if<double>(&a)) return *d == 1.0;
  return std::holds_alternative<None>(a);
}

bool is_whole(const Graph& g, ValueId v) {
  return v == kNoValue || (!is_floating(g.type(v).dtype) && !info(g.type(v).dtype).complex);
}

bool all_whole(const Graph& g, const Node& n) {
  bool whole = std::ranges::all_of(n.outs, [&](ValueId v) { return is_whole(g, v); });
  for (const Arg& a : n.args) {
    for_each_ref(a, [&](ValueId v) { whole = whole && is_whole(g, v); });
    whole = whole && !std::holds_alternative<double>(a);
  }
  return whole;
}

bool takes_number(const Graph& g, const Node& n) {
  bool number = false;
  for (const Arg& a : n.args) {
    number = number || std::holds_alternative<double>(a);
    for_each_ref(a, [&](ValueId v) { number = number || (v != kNoValue && g.type(v).sizes.empty()); });
  }
  return number;
}

}  // namespace

bool has_eagers_bits(const Graph& g, const Node& n) {
  if (n.op->is_prim() || all_whole(g, n)) return true;
  if (is_among(kProductsOfEager, n.op->name) && g.type(n.outs.at(0)).device.type == DeviceType::kCUDA) return false;
  if (is_among(kExact, n.op->name)) return true;
  if (!is_among(kSums, n.op->name)) return false;
  if (is_reduced(g.type(n.outs.at(0)).dtype) && takes_number(g, n)) return false;
  return n.op->name == op::threshold || n.args.size() < 3 || is_one(n.args[2]);
}

}  // namespace flashover::graph
